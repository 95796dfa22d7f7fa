package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestRunCountsEveryMessage(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"batch":           {"--messages", "500", "--batch", "7", "--partitions", "9"},
		"single":          {"--messages", "200", "--ack", "single", "--partitions", "5"},
		"auto":            {"--messages", "500", "--ack", "auto"},
		"two groups":      {"--messages", "300", "--groups", "2", "--pop-partitions", "3", "--pop-batch", "25"},
		"two queues":      {"--messages", "300", "--queues", "2", "--partitions", "3", "--consumers", "3"},
		"dedup off":       {"--messages", "300", "--dedup", "off"},
		"open loop":       {"--messages", "300", "--rate", "3000", "--max-in-flight", "8"},
		"no waiting":      {"--messages", "300", "--wait", "0"},
		"tiny payload":    {"--messages", "100", "--payload-size", "0"},
		"push only":       {"--messages", "300", "--no-consume"},
		"odd last batch":  {"--messages", "101", "--batch", "10", "--producers", "3"},
		"many partitions": {"--messages", "300", "--partitions", "300", "--batch", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, url := startFake(t)
			rep := runAgainst(t, url, flags...)
			want := int64(500)
			for i, flag := range flags {
				if flag == "--messages" {
					_ = json.Unmarshal([]byte(flags[i+1]), &want)
				}
			}
			if !rep.OK || rep.Checks.Pushed+rep.Requests.Shed != want {
				t.Errorf("OK %v, pushed %d, shed %d, want %d: %v", rep.OK, rep.Checks.Pushed, rep.Requests.Shed, want, rep.Checks.FirstWords)
			}
			for _, g := range rep.Checks.Groups {
				if g.Delivered != rep.Checks.Pushed || g.Redelivered != 0 {
					t.Errorf("group %s: %+v", g.Group, g)
				}
			}
			if rep.Latency.Push.Count == 0 || rep.Rates.Push <= 0 {
				t.Errorf("no push latency or rate: %+v %+v", rep.Latency.Push, rep.Rates)
			}
			if len(f.deleted) != len(f.configured) {
				t.Errorf("deleted %v of %d queues", f.deleted, len(f.configured))
			}
		})
	}
}

func TestRunConfiguresDedupWindow(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]float64{"on": 3600, "off": 0} {
		f, url := startFake(t)
		runAgainst(t, url, "--messages", "10", "--dedup", flag)
		for queue, options := range f.configured {
			if options["dedupWindowSeconds"] != want {
				t.Errorf("dedup %s: queue %s configured with %v", flag, queue, options)
			}
		}
	}
}

func TestRunSeesLostMessages(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	var n int
	f.swallow = func(*fakeMessage) bool { n++; return n == 50 || n == 51 }
	rep := runAgainst(t, url, "--messages", "200", "--drain-timeout", "300ms")
	if rep.OK || rep.Checks.Groups[0].Lost != 2 {
		t.Errorf("OK %v, lost %d, want 2", rep.OK, rep.Checks.Groups[0].Lost)
	}
	if !strings.Contains(strings.Join(rep.Checks.FirstWords, "\n"), "lost") {
		t.Errorf("problems do not name the loss: %v", rep.Checks.FirstWords)
	}
}

func TestRunSeesDuplicates(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	var once atomic.Bool
	f.deliver = func(batch []*fakeMessage) []*fakeMessage {
		if once.CompareAndSwap(false, true) {
			return append(batch, batch...)
		}
		return batch
	}
	rep := runAgainst(t, url, "--messages", "200")
	if rep.OK || rep.Checks.Groups[0].Duplicates == 0 {
		t.Errorf("OK %v, checks %+v, want duplicates", rep.OK, rep.Checks.Groups[0])
	}
}

func TestRunSeesDisorder(t *testing.T) {
	t.Parallel()
	for _, ack := range []string{ackBatch, ackAuto} {
		f, url := startFake(t)
		f.deliver = func(batch []*fakeMessage) []*fakeMessage {
			slices.Reverse(batch)
			return batch
		}
		rep := runAgainst(t, url, "--messages", "200", "--ack", ack)
		if rep.OK || rep.Checks.Groups[0].Disorder == 0 {
			t.Errorf("ack %s: OK %v, checks %+v, want disorder", ack, rep.OK, rep.Checks.Groups[0])
		}
	}
}

func TestRunSeesHandOutsThatVanish(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	var n int
	f.dropPop = func() bool { n++; return n%7 == 0 }
	rep := runAgainst(t, url, "--messages", "200")
	g := rep.Checks.Groups[0]
	if rep.OK || g.Vanished == 0 || g.Lost != 0 || g.Delivered != 200 {
		t.Errorf("OK %v, checks %+v, want vanished hand-outs and nothing lost", rep.OK, g)
	}
	if !rep.Checks.clean(true) {
		t.Error("a failed pop must excuse them")
	}
}

func TestRunRepeatsFailedPushes(t *testing.T) {
	t.Parallel()
	for name, stored := range map[string]bool{"refused": false, "stored but unanswered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, url := startFake(t)
			f.failPush = func(n int) (int, bool) {
				if n%5 == 0 {
					return http.StatusServiceUnavailable, stored
				}
				return 0, true
			}
			rep := runAgainst(t, url, "--messages", "200")
			if !rep.OK || rep.Checks.Pushed != 200 || rep.Requests.Retries == 0 || rep.Requests.PushErrors["503"] == 0 {
				t.Errorf("OK %v, %+v, %+v", rep.OK, rep.Checks, rep.Requests)
			}
		})
	}
}

func TestRunDoesNotRepeatPushesWithoutIDs(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	f.failPush = func(n int) (int, bool) {
		if n == 3 {
			return http.StatusServiceUnavailable, true
		}
		return 0, true
	}
	rep := runAgainst(t, url, "--messages", "200", "--dedup", "off")
	if !rep.OK || rep.Checks.Uncertain != 10 || rep.Checks.Pushed != 190 || rep.Requests.Retries != 0 {
		t.Errorf("OK %v, %+v", rep.OK, rep.Checks)
	}
	if got := rep.Checks.Groups[0].Delivered; got != 200 {
		t.Errorf("delivered %d, want the uncertain ones too", got)
	}
}

func TestRunReadsBrokersWithoutOffsets(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	f.noOffset = true
	if rep := runAgainst(t, url, "--messages", "300"); !rep.OK {
		t.Errorf("%+v", rep.Checks)
	}
}

func TestRunShedsWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	f, url := startFake(t)
	f.failPush = func(int) (int, bool) { return 0, true }
	// One partition admits one request at a time, far fewer than scheduled.
	rep := runAgainst(t, url, "--messages", "20000", "--rate", "2000000", "--partitions", "1", "--batch", "10")
	q := rep.Requests
	if !rep.OK || q.Shed == 0 || q.Scheduled != 20000 || rep.Checks.Pushed+q.Shed != q.Scheduled {
		t.Errorf("OK %v, scheduled %d, shed %d, pushed %d", rep.OK, q.Scheduled, q.Shed, rep.Checks.Pushed)
	}
}

func TestRunTakesDataFromFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "data.ndjson")
	lines := "{\"s\":99,\"nested\":{\"l\":1}}\n\n[1,2,3]\n\"text with \\\" quote\"\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	_, url := startFake(t)
	if rep := runAgainst(t, url, "--messages", "100", "--data", file); !rep.OK {
		t.Errorf("%+v", rep.Checks)
	}
}

func TestProgramExitCodes(t *testing.T) {
	t.Parallel()
	lossy, lossyURL := startFake(t)
	lossy.swallow = func(m *fakeMessage) bool { return m.offset == 3 }
	_, goodURL := startFake(t)
	file := filepath.Join(t.TempDir(), "report.json")
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"good", []string{"--url", goodURL, "--messages", "50", "--token", "s3cret", "--json", file}, exitOK},
		{"lossy", []string{"--url", lossyURL, "--messages", "50", "--drain-timeout", "100ms"}, exitFailed},
		{"bad flag", []string{"--ack", "maybe"}, exitUsage},
		{"bad mode", []string{"walk"}, exitUsage},
		{"nobody there", []string{"--url", "http://127.0.0.1:1", "--messages", "1"}, exitError},
	} {
		var out, errOut bytes.Buffer
		if got := realMain(append(c.args, "--quiet"), &out, &errOut); got != c.want {
			t.Errorf("%s: exit %d, want %d\n%s%s", c.name, got, c.want, &out, &errOut)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rep report
	if err := json.Unmarshal(b, &rep); err != nil || !rep.OK || rep.Machine.Cores == 0 || rep.Checks.Pushed != 50 {
		t.Errorf("report %v: %s", err, b)
	}
	if bytes.Contains(b, []byte("s3cret")) {
		t.Error("the report holds the token")
	}
}

func TestFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"--producers 0", "--producers 7 --partitions 6", "--dedup maybe", "--ack none", "--queues 3 --consumers 2",
		"--duration 1s --messages 5", "--with-floor", "floor", "--lease 10ms", "extra", "--rate -1",
	} {
		var out bytes.Buffer
		if _, err := parseFlags(strings.Fields(args), &out); err == nil {
			t.Errorf("%q accepted", args)
		}
	}
	cfg, err := parseFlags(strings.Fields("--url http://a,http://b --url http://c"), &bytes.Buffer{})
	if err != nil || len(cfg.urls) != 3 {
		t.Errorf("urls %v, %v", cfg, err)
	}
}

func TestCommandLineHidesSecrets(t *testing.T) {
	t.Parallel()
	cfg := &config{command: []string{"--token", "abc", "--token=abc", "--database-url", "postgres://u:abc@h/d"}}
	if got := strings.Join(cfg.commandLine(), " "); strings.Contains(got, "abc") {
		t.Errorf("command line %q", got)
	}
}
