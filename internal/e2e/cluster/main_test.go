//go:build linux

package cluster

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	code := m.Run()
	removeTemplate()
	removeBuilds()
	os.Exit(code)
}
