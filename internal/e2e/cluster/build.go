//go:build linux

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// workshop is a folder for what all tests of this process share: the programs
// and the database they start with. Folders of processes that were killed are
// removed on the way.
var workshop = sync.OnceValues(func() (string, error) {
	const prefix = "queen-cluster-shared-"
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			_ = os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // servers of another user pass through it
})

// removeWorkshop is for the end of the tests.
func removeWorkshop() {
	if dir, err := workshop(); err == nil {
		_ = os.RemoveAll(dir)
	}
}

// builds are the programs that the tests run, each made once.
var builds struct {
	mu   sync.Mutex
	dir  string
	made map[string]func() (string, error)
}

// raceFlag builds the brokers with the race detector, for long runs.
const raceFlag = "CLUSTER_RACE"

// Built returns the path of a program of this tree: queen, queen-clock (whose
// clock can be shifted), queen-next (whose schema is some steps ahead) or
// loadtest.
func Built(name string) (string, error) {
	builds.mu.Lock()
	if builds.made == nil {
		dir, err := workshop()
		if err != nil {
			builds.mu.Unlock()
			return "", err
		}
		builds.dir, builds.made = dir, map[string]func() (string, error){}
	}
	if builds.made[name] == nil {
		builds.made[name] = sync.OnceValues(func() (string, error) { return build(name) })
	}
	made := builds.made[name]
	builds.mu.Unlock()
	return made()
}

func build(name string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	// A name of its own: who ends all brokers of a machine by name does not mean
	// these.
	to := filepath.Join(builds.dir, name+"-under-test")
	args, from := []string{"build", "-o", to}, "./cmd/queen"
	if os.Getenv(raceFlag) != "" && name != "loadtest" {
		args = append(args, "-race")
	}
	switch name {
	case "loadtest":
		from = "./loadtest"
	case "queen-clock":
		overlay, err := clockOverlay()
		if err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	case "queen-next":
		overlay, err := nextOverlay(root)
		if err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, from)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return to, nil
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	return filepath.Dir(strings.TrimSpace(string(out))), err
}

// clockOffset is the variable by which a broker of queen-clock is told how many
// seconds its clock is off.
const clockOffset = "CLUSTER_CLOCK_OFFSET"

// The two changes to the standard library's time.Now, which everything in the
// process gets the time from. Timers, and time that has passed, are measured
// with the monotonic clock and stay right, as on a machine whose clock is off.
const (
	nowAsIs    = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	nowShifted = nowAsIs + "\tsec += clusterClockOffset\n"
	nowOffset  = `

var clusterClockOffset = func() (offset int64) {
	text, _ := syscall.Getenv("` + clockOffset + `")
	sign := int64(1)
	for _, c := range []byte(text) {
		if c == '-' {
			sign = -1
			continue
		}
		offset = 10*offset + int64(c-'0')
	}
	return sign * offset
}()
`
)

// clockOverlay writes the changed file and the list that tells the compiler to
// use it. No clock of the machine is touched, and no code of ours.
func clockOverlay() (string, error) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	original := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go")
	raw, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	text := string(raw)
	if strings.Count(text, nowAsIs) != 1 || strings.Count(text, "import (\n") != 1 {
		return "", errors.New("time.Now is written differently in this version of Go: adapt the overlay")
	}
	text = strings.Replace(text, nowAsIs, nowShifted, 1)
	text = strings.Replace(text, "import (\n", "import (\n\t\"syscall\"\n", 1) + nowOffset
	changed := filepath.Join(builds.dir, "time.go")
	if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
		return "", err
	}
	return overlay("clock", map[string]string{original: changed})
}

// overlay writes the list of files that the compiler is to read elsewhere.
func overlay(name string, files map[string]string) (string, error) {
	list, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return "", err
	}
	path := filepath.Join(builds.dir, name+".json")
	return path, os.WriteFile(path, list, 0o644)
}

// hotTables are those that pushes, pops and acknowledgements write.
var hotTables = []string{"queues", "partitions", "segments", "message_ids", "consumer_groups", "cursors"}

// nextOverlay adds the steps that a next version could bring: a nullable column
// for each hot table, and an index that is built beside the work.
func nextOverlay(root string) (string, error) {
	files := map[string]string{}
	add := func(name, sql string) error {
		path := filepath.Join(builds.dir, name)
		files[filepath.Join(root, "migrations", name)] = path
		return os.WriteFile(path, []byte(sql), 0o644)
	}
	for i, table := range hotTables {
		err := add(fmt.Sprintf("0009%d_note_%s.sql", i, table),
			fmt.Sprintf("-- +goose Up\nSET LOCAL lock_timeout = '50ms';\nALTER TABLE queen.%s ADD COLUMN note text;\n", table))
		if err != nil {
			return "", err
		}
	}
	err := add("00099_index_notes.sql", "-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY cursors_note_idx ON queen.cursors (note);\n")
	if err != nil {
		return "", err
	}
	return overlay("next", files)
}
