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

// The path and the directory of --enable-logs-handler.
const (
	logsPath = "/logs"
	logsDir  = "/var/log"
)

// installLogs serves the log files of the machine.
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
		// ServeFile refuses paths with a .. element.
		http.ServeFile(w, req, name)
	})
}
