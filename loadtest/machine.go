package main

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// machine says where a number was measured; without it a number means nothing.
type machine struct {
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	Kernel      string `json:"kernel,omitempty"`
	CPU         string `json:"cpu,omitempty"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memoryBytes,omitempty"`
	Go          string `json:"go"`
}

func thisMachine() machine {
	m := machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}
	// Only Linux has these files; elsewhere the fields stay empty rather than guessed.
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	m.CPU = procField("/proc/cpuinfo", "model name")
	if kb, err := strconv.ParseInt(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.MemoryBytes = kb << 10
	}
	return m
}

func procField(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		key, value, found := strings.Cut(in.Text(), ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// buildVersion is the module version, or the commit the program was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && version == "(devel)":
			version = s.Value
		case s.Key == "vcs.modified" && s.Value == "true" && !strings.Contains(version, "dirty"):
			version += "+dirty"
		}
	}
	return version
}
