//go:build linux

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// find looks for a program where Debian puts it, which for servers is outside
// of a normal user's PATH.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	path, err := exec.LookPath("/usr/sbin/" + name)
	if err != nil {
		return "", fmt.Errorf("%s is not installed: scripts/ensure-services.sh %s", name, name)
	}
	return path, nil
}

// taken are the ports that this process has chosen, in use already or not.
var taken sync.Map

// freePort finds a port below those the kernel gives to outgoing connections: a
// server that is restarted finds it free again.
func freePort() (int, error) {
	for range 200 {
		port := 20000 + rand.IntN(12000)
		if _, known := taken.LoadOrStore(port, true); known {
			continue
		}
		ln, err := net.Listen("tcp", local(port))
		if err != nil {
			continue
		}
		return port, ln.Close()
	}
	return 0, errors.New("no free port")
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// awaitTCP waits until something listens.
func awaitTCP(p *Process, addr string) error {
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if !p.Running() {
			return p.ended()
		}
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			return c.Close()
		}
	}
	return fmt.Errorf("%s does not listen", p.Name)
}

// Redis carries hints between the brokers, and keeps nothing.
type Redis struct {
	c    *Cluster
	port int
	proc *Process
}

func (r *Redis) start() error {
	path, err := find("redis-server")
	if err != nil {
		return err
	}
	r.proc, err = r.c.launcher.start(program{
		name: "redis", log: r.c.logFile("redis"), dir: r.c.dir, onDeath: syscall.SIGKILL,
		command: []string{path, "--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"},
	})
	if err != nil {
		return err
	}
	return awaitTCP(r.proc, local(r.port))
}

// PgBouncer pools by transaction.
type PgBouncer struct {
	c    *Cluster
	port int
	proc *Process
}

func (b *PgBouncer) start(server string) error {
	path, err := find("pgbouncer")
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(server)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.c.dir, "pgbouncer")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	users, conf := filepath.Join(dir, "users"), filepath.Join(dir, "pgbouncer.ini")
	// Fewer sessions than the brokers open connections, or nothing would be
	// pooled; what is idle is closed soon, so that sessions change hands.
	text := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 5
max_client_conn = 200
server_login_retry = 1
server_connect_timeout = 3
query_wait_timeout = 10
`, port, b.port, users)
	for name, content := range map[string]string{users: "\"postgres\" \"\"\n", conf: text} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	b.proc, err = b.c.launcher.start(program{
		name: "pgbouncer", command: []string{path, "-q", conf}, dir: dir, as: b.c.account,
		log: b.c.logFile("pgbouncer"), onDeath: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	return awaitTCP(b.proc, local(b.port))
}

// Nginx balances, with the configuration that deploy/ ships.
type Nginx struct {
	c    *Cluster
	port int
	proc *Process
}

var (
	shippedServers = regexp.MustCompile(`server broker-1:6632([^\n]*);(\s*server broker-\d+:6632[^\n]*)*`)
	shippedListen  = regexp.MustCompile(`listen 6632;`)
)

// config puts our addresses and paths in the shipped configuration, and changes
// nothing else.
func (n *Nginx) config(upstreams []string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(filepath.Join(root, "deploy", "nginx.conf"))
	if err != nil {
		return "", err
	}
	match := shippedServers.FindSubmatch(raw)
	if match == nil || !shippedListen.Match(raw) {
		return "", fmt.Errorf("deploy/nginx.conf has no servers broker-N:6632, or listens elsewhere")
	}
	var servers strings.Builder
	for _, addr := range upstreams {
		fmt.Fprintf(&servers, "server %s%s;\n", addr, match[1])
	}
	text := shippedServers.ReplaceAllLiteral(raw, []byte(servers.String()))
	text = shippedListen.ReplaceAllLiteral(text, []byte("listen "+local(n.port)+";"))
	dir := filepath.Join(n.c.dir, "nginx")
	text = bytes.ReplaceAll(text, []byte("/tmp/nginx"), []byte(dir+"/nginx"))
	text = bytes.Replace(text, []byte("http {"), fmt.Appendf(nil, "http {\nfastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n", dir), 1)
	text = bytes.Replace(text, []byte("worker_connections 32768;"), []byte("worker_connections 4096;"), 1)
	text = append([]byte("daemon off;\n"), text...)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, text, 0o644)
}

func (n *Nginx) start(upstreams []string) error {
	path, err := find("nginx")
	if err != nil {
		return err
	}
	conf, err := n.config(upstreams)
	if err != nil {
		return err
	}
	n.proc, err = n.c.launcher.start(program{
		name: "nginx", command: []string{path, "-p", n.c.dir, "-e", "stderr", "-c", conf}, dir: n.c.dir,
		log: n.c.logFile("nginx"), onDeath: syscall.SIGTERM, // its workers would outlive a SIGKILL
	})
	if err != nil {
		return err
	}
	return awaitTCP(n.proc, local(n.port))
}

// Broker is a broker of this tree. Direct reaches it past the balancer and
// every link.
type Broker struct {
	c      *Cluster
	Name   string
	Direct string
	Offset time.Duration // of its clock
	env    []string
	proc   *Process

	HTTP *Link    // between nginx and the broker
	DB   [2]*Link // between the broker and each server of the pair, or PgBouncer
	Hint *Link    // between the broker and Redis
}

var listening = regexp.MustCompile(`broker is listening.* url=(\S+)`)

// start runs the broker and returns when it listens.
func (b *Broker) start() error {
	name, env := "queen", b.env
	if b.Offset != 0 {
		name, env = "queen-clock", append(env[:len(env):len(env)], fmt.Sprintf("%s=%d", clockOffset, int64(b.Offset.Seconds())))
	}
	bin, err := Built(name)
	if err != nil {
		return err
	}
	b.HTTP.Refuse() // until it listens
	path := b.c.logFile(b.Name)
	before, _ := os.ReadFile(path)
	b.proc, err = b.c.launcher.start(program{
		name: b.Name, command: []string{bin, "serve"}, env: env, dir: b.c.dir, log: path, onDeath: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	// A broker waits for a database that is away, with growing pauses.
	for until := time.Now().Add(50 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(path)
		if m := listening.FindSubmatch(text[len(before):]); m != nil {
			b.Direct = string(m[1])
			b.HTTP.Retarget(strings.TrimPrefix(b.Direct, "http://"))
			go func(p *Process) {
				<-p.done
				b.HTTP.Refuse()
			}(b.proc)
			return b.HTTP.Open()
		}
		if !b.proc.Running() {
			return b.proc.ended()
		}
	}
	return fmt.Errorf("%s does not listen", b.Name)
}

// Ready reports whether the broker would take traffic.
func (b *Broker) Ready() bool {
	client := http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	res, err := client.Get(b.Direct + "/readyz")
	if err != nil {
		return false
	}
	return res.Body.Close() == nil && res.StatusCode == http.StatusOK
}

// terminate asks the broker to stop. It listens no more from then on, and its
// link must not pretend otherwise.
func (b *Broker) terminate() error {
	b.HTTP.Refuse()
	return b.proc.Signal(syscall.SIGTERM)
}

// Restart ends the broker by a signal and starts it again after a while.
func (b *Broker) Restart(sig syscall.Signal, pause time.Duration) error {
	b.HTTP.Refuse()
	if err := b.proc.Stop(sig, 20*time.Second); err != nil {
		return err
	}
	time.Sleep(pause)
	return b.start()
}

// pause stops the broker in its tracks for a while.
func (b *Broker) pause(d time.Duration) error {
	if err := b.proc.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(d)
	return b.proc.Signal(syscall.SIGCONT)
}

// tool runs a command of the program with the broker's own settings.
func (b *Broker) tool(args ...string) (string, error) {
	bin, err := Built("queen")
	if err != nil {
		return "", err
	}
	return b.c.launcher.run(program{name: "queen " + args[0], command: append([]string{bin}, args...), env: b.env, dir: b.c.dir})
}
