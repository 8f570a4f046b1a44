package config

import (
	"path/filepath"
	"testing"
)

// The working examples load as they are.
func TestExamplesLoad(t *testing.T) {
	files, err := filepath.Glob("../../configs/router*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		if _, err := Load(f); err != nil {
			t.Errorf("%s:\n%v", f, err)
		}
	}
}
