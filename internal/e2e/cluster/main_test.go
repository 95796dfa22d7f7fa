//go:build linux

package cluster

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	code := m.Run()
	removeWorkshop()
	os.Exit(code)
}
