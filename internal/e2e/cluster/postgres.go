//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// diskSize holds the database of a long run; WAL takes up to a third of it.
const diskSize = 768 << 20

// harness is how our own sessions are called: no fault ends them.
const harness = "harness"

// Postgres is one server of the pair.
type Postgres struct {
	Name string
	Port int
	c    *Cluster
	disk *disk
	proc *Process

	mu sync.Mutex
	// What the operator has set beyond the fixed part.
	extra map[string]string
}

func (p *Postgres) data() string { return filepath.Join(p.disk.dir, "data") }

// Addr is where it listens.
func (p *Postgres) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)) }

// URL reaches the server itself, past every link.
func (p *Postgres) URL() string { return "postgres://postgres@" + p.Addr() + "/queen?sslmode=disable" }

// pgProgram finds a program of PostgreSQL.
func pgProgram(name string) (string, error) {
	if dir := os.Getenv("QUEEN_PG_BIN"); dir != "" {
		return filepath.Join(dir, name), nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return find(name)
	}
	slices.SortFunc(found, func(a, b string) int { return major(b) - major(a) })
	return found[0], nil
}

func major(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}

// settings is the part of the configuration that never changes. WAL is kept
// small, because the disk is.
const settings = `
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 150
shared_buffers = 64MB
wal_level = replica
max_wal_senders = 6
max_replication_slots = 6
max_slot_wal_keep_size = 128MB
min_wal_size = 32MB
max_wal_size = 160MB
wal_sender_timeout = 3s
wal_receiver_timeout = 3s
wal_retrieve_retry_interval = 200ms
hot_standby = on
jit = off
log_min_messages = warning
log_line_prefix = '%m [%p] %a '
`

// configure writes the configuration, and tells a running server.
func (p *Postgres) configure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := settings + fmt.Sprintf("port = %d\n", p.Port)
	for name, value := range p.extra {
		text += fmt.Sprintf("%s = '%s'\n", name, value)
	}
	err := p.c.launcher.do(func() error {
		// A disk that is full refuses to hold even this: one block is kept.
		return os.WriteFile(filepath.Join(p.data(), "cluster.conf"), []byte(text), 0o644)
	})
	if err == nil && p.proc.Running() {
		err = p.proc.Signal(syscall.SIGHUP)
	}
	return err
}

// Set changes a setting and has it take effect; an empty value takes it back.
func (p *Postgres) Set(name, value string) error {
	p.mu.Lock()
	if p.extra == nil {
		p.extra = map[string]string{}
	}
	if p.extra[name] = value; value == "" {
		delete(p.extra, name)
	}
	p.mu.Unlock()
	return p.configure()
}

func (p *Postgres) program(name string, args ...string) (program, error) {
	path, err := pgProgram(name)
	return program{
		name: p.Name + " " + name, command: append([]string{path}, args...), dir: p.disk.dir, as: p.c.account,
		env: []string{"HOME=" + p.disk.dir}, onDeath: syscall.SIGQUIT, log: p.c.logFile(p.Name),
	}, err
}

// start brings the server up and returns when it answers.
func (p *Postgres) start() error {
	run, err := p.program("postgres", "-D", p.data())
	if err != nil {
		return err
	}
	if p.proc, err = p.c.launcher.start(run); err != nil {
		return err
	}
	return p.await(30 * time.Second)
}

func (p *Postgres) await(within time.Duration) error {
	var err error
	for until := time.Now().Add(within); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if !p.proc.Running() {
			return errors.Join(p.proc.ended(), err)
		}
		var n int
		if n, err = p.Int("SELECT 1"); err == nil && n == 1 {
			return nil
		}
	}
	return fmt.Errorf("%s does not answer: %w", p.Name, err)
}

// Exec runs statements on the server itself.
func (p *Postgres) Exec(sql string, args ...any) error {
	return p.session(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// Int asks for a number.
func (p *Postgres) Int(sql string, args ...any) (n int, err error) {
	err = p.session(func(ctx context.Context, c *pgx.Conn) error { return c.QueryRow(ctx, sql, args...).Scan(&n) })
	return n, err
}

// Text asks for a text.
func (p *Postgres) Text(sql string, args ...any) (s string, err error) {
	err = p.session(func(ctx context.Context, c *pgx.Conn) error { return c.QueryRow(ctx, sql, args...).Scan(&s) })
	return s, err
}

func (p *Postgres) session(use func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	cfg, err := pgx.ParseConfig(p.URL())
	if err != nil {
		return err
	}
	cfg.RuntimeParams["application_name"] = harness
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.Background()) }()
	return use(ctx, c)
}

// Restart stops the server, with a checkpoint or at once, and starts it again.
func (p *Postgres) Restart(sig syscall.Signal) error {
	if err := p.proc.Stop(sig, 30*time.Second); err != nil {
		return err
	}
	return p.start()
}

// Kill ends the server and all its sessions as a power cut would.
func (p *Postgres) Kill() {
	if !p.proc.Running() {
		return
	}
	_ = p.proc.Signal(syscall.SIGSTOP) // it must not start another session meanwhile
	sessions := children(p.proc.cmd.Process.Pid)
	_ = p.proc.Signal(syscall.SIGKILL)
	for _, pid := range sessions {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.proc.done
	for _, pid := range sessions {
		for until := time.Now().Add(5 * time.Second); syscall.Kill(pid, 0) == nil && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
	}
}

// copyFrom makes the server a standby of another, from nothing.
func (p *Postgres) copyFrom(primary *Postgres) error {
	p.Kill() // of an attempt before
	if err := p.c.launcher.do(func() error { return os.RemoveAll(p.data()) }); err != nil {
		return err
	}
	slot := "slot_" + strings.ReplaceAll(p.Name, "-", "_")
	// The slot of a standby that is gone would only keep WAL.
	if err := primary.Exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active", slot); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(p.c.follow.Addr())
	if err != nil {
		return err
	}
	run, err := p.program("pg_basebackup", "-D", p.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync", "-C", "-S", slot,
		"-d", fmt.Sprintf("host=127.0.0.1 port=%s user=postgres application_name=%s", port, p.Name))
	if err != nil {
		return err
	}
	if out, err := p.c.launcher.run(run); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	p.mu.Lock()
	p.extra = nil
	p.mu.Unlock()
	if err := p.configure(); err != nil {
		return err
	}
	return p.start()
}

// awaitStreaming waits until a standby has everything and follows.
func (p *Postgres) awaitStreaming() error {
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if n, err := p.Int("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"); err == nil && n > 0 {
			return nil
		}
	}
	return errors.New("no standby follows " + p.Name)
}

// template is a data folder with an empty, migrated database, made once.
var template struct {
	once sync.Once
	dir  string
	err  error
}

// fresh gives the server a copy of the template.
func (p *Postgres) fresh() error {
	template.once.Do(func() { template.dir, template.err = makeTemplate() })
	if template.err != nil {
		return fmt.Errorf("prepare a database: %w", template.err)
	}
	_, err := p.c.launcher.run(program{name: "copy", command: []string{"cp", "-a", template.dir + "/data", p.data()}, dir: p.disk.dir})
	if err != nil {
		return err
	}
	return p.configure()
}

// makeTemplate runs initdb and, as an operator would, `queen migrate up`.
func makeTemplate() (dir string, err error) {
	shared, err := workshop()
	if err != nil {
		return "", err
	}
	c := &Cluster{dir: filepath.Join(shared, "template")}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return "", err
	}
	if err := c.prepare(); err != nil {
		return "", err
	}
	defer c.launcher.close()
	p := &Postgres{Name: "template", c: c, disk: &disk{l: c.launcher, dir: c.dir}}
	if p.Port, err = freePort(); err != nil {
		return "", err
	}
	if err := c.account.own(c.dir); err != nil {
		return "", err
	}
	initdb, err := p.program("initdb", "-D", p.data(), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
	if err != nil {
		return "", err
	}
	if _, err := c.launcher.run(initdb); err != nil {
		return "", err
	}
	conf, err := os.OpenFile(filepath.Join(p.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	_, err = conf.WriteString("\ninclude_if_exists = 'cluster.conf'\n")
	if err := errors.Join(err, conf.Close(), p.configure()); err != nil {
		return "", err
	}
	run, err := p.program("postgres", "-D", p.data())
	if err != nil {
		return "", err
	}
	if p.proc, err = c.launcher.start(run); err != nil {
		return "", err
	}
	return c.dir, errors.Join(p.migrate(), p.proc.Stop(syscall.SIGINT, 20*time.Second))
}

// migrate makes the database and its schema.
func (p *Postgres) migrate() error {
	bin, err := Built("queen")
	if err != nil {
		return err
	}
	admin := strings.Replace(p.URL(), "/queen?", "/postgres?", 1)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var c *pgx.Conn
	for c, err = pgx.Connect(ctx, admin); err != nil; c, err = pgx.Connect(ctx, admin) {
		if ctx.Err() != nil || !p.proc.Running() {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	_, err = c.Exec(ctx, "CREATE DATABASE queen")
	if err := errors.Join(err, c.Close(ctx)); err != nil {
		return err
	}
	_, err = p.c.launcher.run(program{name: "queen migrate", command: []string{bin, "migrate", "up"}, env: []string{"DATABASE_URL=" + p.URL()}})
	return err
}

// revive starts a server that has given up, as the service manager would, and
// waits for one that is about to.
func (p *Postgres) revive() error {
	for range 5 {
		if p.proc.Running() {
			if err := p.await(20 * time.Second); err == nil {
				return nil
			}
			continue
		}
		if err := p.start(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s does not come back", p.Name)
}

// exhaust writes WAL until the full disk refuses it: a server goes on for a
// while with what it had set aside.
func (p *Postgres) exhaust() {
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		if p.Exec("SELECT pg_logical_emit_message(true, 'fill', repeat('x', 4000000))") != nil {
			return
		}
	}
}
