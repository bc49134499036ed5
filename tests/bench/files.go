package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"triune.dev/tests/bench/report"
)

// Files are the files of a result: <Name>.json, <Name>.md and <Name>-*.svg in Dir.
type Files struct{ Dir, Name string }

// Page returns the path of the file with the tables.
func (f Files) Page() string { return filepath.Join(f.Dir, f.Name+".md") }

func (f Files) data() string { return filepath.Join(f.Dir, f.Name+".json") }

// Read reads the existing result.
func (f Files) Read() (*report.Result, error) {
	file, err := os.Open(f.data())
	if err != nil {
		return nil, fmt.Errorf("read benchmark result: %w", err)
	}
	defer file.Close()
	return report.ReadJSON(file)
}

// Write replaces the existing result.
func (f Files) Write(result *report.Result) error {
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("write benchmark result: %w", err)
	}
	var data, page bytes.Buffer
	if err := result.WriteJSON(&data); err != nil {
		return err
	}
	charts := result.Charts(f.Name + "-")
	if err := result.Markdown(&page, charts); err != nil {
		return err
	}
	files := map[string][]byte{f.data(): data.Bytes(), f.Page(): page.Bytes()}
	for _, c := range charts {
		files[filepath.Join(f.Dir, c.File)] = []byte(c.SVG)
	}
	for name, content := range files {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return fmt.Errorf("write benchmark result: %w", err)
		}
	}
	return nil
}
