package core

import (
	"errors"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"

	"triune.dev/shared/server/resources"
)

// Where --enable-logs-handler serves log files, and from where.
const (
	logsPath = "/logs"
	logsDir  = "/var/log"
)

// installLogs serves the log files of this machine.
func (s *Server) installLogs() {
	files := s.GetOnly(logFiles(logsDir), resources.Media{})
	s.Handle(logsPath, files)
	s.UnlistedHandlePrefix(logsPath+"/", files)
}

// logFiles serves the files below dir, and lists its directories.
func logFiles(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		name := path.Join(dir, strings.TrimPrefix(req.URL.Path, logsPath))
		if _, err := os.Stat(name); errors.Is(err, syscall.ENAMETOOLONG) {
			http.Error(w, "file not found", http.StatusNotFound)
			return
		}
		// It refuses paths that lead upwards.
		http.ServeFile(w, req, name)
	})
}
