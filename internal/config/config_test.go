package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func load(t *testing.T, environ ...string) Config {
	t.Helper()
	c, err := Load(environ, nil)
	if err != nil {
		t.Fatalf("%q: %v", environ, err)
	}
	return c
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		DatabaseURL: "postgres://postgres:postgres@localhost:5432/postgres?sslmode=disable",
		RedisPrefix: "queen:",
		Port:        6632, BindAddr: "0.0.0.0", ServerID: host,
		MaxBodyBytes: 64 << 20, MaxInflight: 96 << 20, ShutdownLimit: 15 * time.Second,
		PoolSize: 24, StatementTimeout: 30 * time.Second,
		PopTimeout: 30 * time.Second, SubscriptionMode: SubscribeNew,
		PopWait: PopWait{InitialInterval: 100 * time.Millisecond, BackoffThreshold: 3, Multiplier: 2, MaxInterval: time.Second},
		KV: KV{
			MaxValueBytes: 65536, MaxReadBytes: 4 << 20, MaxOps: 256, MaxKeys: 1024, WriteRate: 100, ReadRate: 200,
		},
		Ephemeral: Ephemeral{
			MaxBytes: 256 << 20, QueueMaxBytes: 16 << 20, QueueMaxLength: 10_000, Lease: 30 * time.Second, RetryLimit: 5,
			ImplicitIdle: 5 * time.Minute, Unread: time.Hour, GroupIdle: 24 * time.Hour,
		},
		TimerPayload: 1 << 20, TimerHorizon: 90 * 24 * time.Hour,
		CacheRefresh: time.Minute, FetchSafeFloor: 30 * time.Second,
		RetentionInterval: 5 * time.Second, RetentionBatchSize: 1000,
		PartitionCleanup: true, PartitionIdleDays: 30,
		LogLevel: slog.LevelInfo,
	}
	if got := load(t); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%vwant\n%v", got, want)
	}
}

func TestEachVariableReachesItsField(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		env  string
		got  func(Config) any
		want any
	}{
		{"DATABASE_URL=postgresql://u:p@db/q", func(c Config) any { return c.DatabaseURL }, "postgresql://u:p@db/q"},
		{"DATABASE_URL=postgres:///q?host=/run/pg", func(c Config) any { return c.DatabaseURL }, "postgres:///q?host=/run/pg"},
		{"REDIS_URL=rediss://:pw@cache:6380/2", func(c Config) any { return c.RedisURL }, "rediss://:pw@cache:6380/2"},
		{"REDIS_URL=redis://a:1?addr=b:2&addr=c:3", func(c Config) any { return c.RedisURL }, "redis://a:1?addr=b:2&addr=c:3"},
		{"QUEEN_REDIS_PREFIX=eu-1/queen:", func(c Config) any { return c.RedisPrefix }, "eu-1/queen:"},
		{"QUEEN_REDIS_PREFIX=", func(c Config) any { return c.RedisPrefix }, "queen:"},
		{"QUEEN_EPHEMERAL_MAX_BYTES=1000", func(c Config) any { return c.Ephemeral.MaxBytes }, int64(1000)},
		{"QUEEN_EPHEMERAL_QUEUE_MAX_BYTES=2000", func(c Config) any { return c.Ephemeral.QueueMaxBytes }, int64(2000)},
		{"QUEEN_EPHEMERAL_QUEUE_MAX_LENGTH=3", func(c Config) any { return c.Ephemeral.QueueMaxLength }, int64(3)},
		{"QUEEN_EPHEMERAL_LEASE_S=4", func(c Config) any { return c.Ephemeral.Lease }, 4 * time.Second},
		{"QUEEN_EPHEMERAL_RETRY_LIMIT=0", func(c Config) any { return c.Ephemeral.RetryLimit }, int64(0)},
		{"QUEEN_EPHEMERAL_IMPLICIT_IDLE_S=5", func(c Config) any { return c.Ephemeral.ImplicitIdle }, 5 * time.Second},
		{"QUEEN_EPHEMERAL_UNREAD_S=6", func(c Config) any { return c.Ephemeral.Unread }, 6 * time.Second},
		{"QUEEN_EPHEMERAL_GROUP_IDLE_S=0", func(c Config) any { return c.Ephemeral.GroupIdle }, time.Duration(0)},
		{"QUEEN_EPHEMERAL_REQUIRE_GRANT=yes", func(c Config) any { return c.Ephemeral.RequireGrant }, true},
		{"PORT=0", func(c Config) any { return c.Port }, 0},
		{"PORT= 8080 ", func(c Config) any { return c.Port }, 8080},
		{"PORT=", func(c Config) any { return c.Port }, 6632},
		{"QUEEN_BIND_ADDR=::1", func(c Config) any { return c.BindAddr }, "::1"},
		{"HOST=127.0.0.1", func(c Config) any { return c.BindAddr }, "127.0.0.1"},
		{"QUEEN_SERVER_ID=a1", func(c Config) any { return c.ServerID }, "a1"},
		{"QUEEN_MAX_BODY_BYTES=2048", func(c Config) any { return c.MaxBodyBytes }, int64(2048)},
		{"QUEEN_MAX_INFLIGHT_BYTES=2097152", func(c Config) any { return c.MaxInflight }, int64(2 << 20)},
		{"QUEEN_SHUTDOWN_TIMEOUT_MS=0", func(c Config) any { return c.ShutdownLimit }, time.Duration(0)},
		{"DB_POOL_SIZE=160", func(c Config) any { return c.PoolSize }, 160},
		{"QUEEN_STMT_TIMEOUT_MS=5", func(c Config) any { return c.StatementTimeout }, 5 * time.Millisecond},
		{"DB_STATEMENT_TIMEOUT=6", func(c Config) any { return c.StatementTimeout }, 6 * time.Millisecond},
		{"DEFAULT_TIMEOUT=60000", func(c Config) any { return c.PopTimeout }, time.Minute},
		{"POP_DEFAULT_TIMEOUT_MS=7", func(c Config) any { return c.PopTimeout }, 7 * time.Millisecond},
		{"DEFAULT_SUBSCRIPTION_MODE=all", func(c Config) any { return c.SubscriptionMode }, SubscribeAll},
		{"DEFAULT_SUBSCRIPTION_MODE=", func(c Config) any { return c.SubscriptionMode }, SubscribeAll},
		{"DEFAULT_SUBSCRIPTION_MODE=new-only", func(c Config) any { return c.SubscriptionMode }, SubscribeNew},
		{"POP_WAIT_INITIAL_INTERVAL_MS=50", func(c Config) any { return c.PopWait.InitialInterval }, 50 * time.Millisecond},
		{"POP_WAIT_BACKOFF_THRESHOLD=0", func(c Config) any { return c.PopWait.BackoffThreshold }, 0},
		{"POP_WAIT_BACKOFF_MULTIPLIER=1.5", func(c Config) any { return c.PopWait.Multiplier }, 1.5},
		{"POP_WAIT_MAX_INTERVAL_MS=2000", func(c Config) any { return c.PopWait.MaxInterval }, 2 * time.Second},
		{"QUEEN_KV_MAX_VALUE_BYTES=1000", func(c Config) any { return c.KV.MaxValueBytes }, 1000},
		{"QUEEN_KV_MAX_READ_BYTES=2000", func(c Config) any { return c.KV.MaxReadBytes }, int64(2000)},
		{"QUEEN_KV_MAX_OPS_PER_CALL=3", func(c Config) any { return c.KV.MaxOps }, 3},
		{"QUEEN_KV_MAX_KEYS_PER_CALL=4096", func(c Config) any { return c.KV.MaxKeys }, 4096},
		{"QUEEN_KV_WRITE_RATE=0", func(c Config) any { return c.KV.WriteRate }, 0.0},
		{"QUEEN_KV_READ_RATE=12.5", func(c Config) any { return c.KV.ReadRate }, 12.5},
		{"QUEEN_CACHE_REFRESH_INTERVAL_MS=9", func(c Config) any { return c.CacheRefresh }, 9 * time.Millisecond},
		{"QUEEN_FETCH_SAFE_FLOOR_MS=8", func(c Config) any { return c.FetchSafeFloor }, 8 * time.Millisecond},
		{"RETENTION_INTERVAL=300000", func(c Config) any { return c.RetentionInterval }, 5 * time.Minute},
		{"RETENTION_BATCH_SIZE=10", func(c Config) any { return c.RetentionBatchSize }, 10},
		{"QUEEN_PARTITION_CLEANUP_ENABLED=off", func(c Config) any { return c.PartitionCleanup }, false},
		{"PARTITION_CLEANUP_DAYS=1", func(c Config) any { return c.PartitionIdleDays }, 1},
		{"LOG_LEVEL=WARNING", func(c Config) any { return c.LogLevel }, slog.LevelWarn},
		{"QUEEN_LOG_JSON=Yes", func(c Config) any { return c.LogJSON }, true},
	} {
		if got := tc.got(load(t, tc.env)); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.env, got, tc.want)
		}
	}
}

func TestGarbageNamesTheVariable(t *testing.T) {
	t.Parallel()
	for _, env := range []string{
		"PORT=http", "PORT=-1", "PORT=65536", "PORT=6632.0", "PORT=0x10", "PORT=99999999999999999999",
		"QUEEN_BIND_ADDR=0.0.0.0:6632", "HOST=http://here",
		"QUEEN_MAX_BODY_BYTES=64MB", "QUEEN_MAX_BODY_BYTES=0", "QUEEN_MAX_INFLIGHT_BYTES=1",
		"QUEEN_SHUTDOWN_TIMEOUT_MS=15s", "DB_POOL_SIZE=0", "DB_POOL_SIZE=many",
		"QUEEN_STMT_TIMEOUT_MS=0", "DB_STATEMENT_TIMEOUT=-1", "DEFAULT_TIMEOUT=60001", "POP_DEFAULT_TIMEOUT_MS=x",
		"DEFAULT_SUBSCRIPTION_MODE=latest", "POP_WAIT_INITIAL_INTERVAL_MS=0", "POP_WAIT_BACKOFF_THRESHOLD=x",
		"POP_WAIT_BACKOFF_MULTIPLIER=0.5", "POP_WAIT_BACKOFF_MULTIPLIER=NaN", "POP_WAIT_BACKOFF_MULTIPLIER=two",
		"QUEEN_KV_MAX_KEYS_PER_CALL=4097", "QUEEN_KV_MAX_OPS_PER_CALL=1025", "QUEEN_KV_WRITE_RATE=-1",
		"POP_WAIT_MAX_INTERVAL_MS=99", "QUEEN_CACHE_REFRESH_INTERVAL_MS=", "QUEEN_FETCH_SAFE_FLOOR_MS=-5",
		"RETENTION_INTERVAL=0", "RETENTION_BATCH_SIZE=0", "PARTITION_CLEANUP_DAYS=0",
		"QUEEN_PARTITION_CLEANUP_ENABLED=maybe", "LOG_LEVEL=loud", "QUEEN_LOG_JSON=2",
		"DATABASE_URL=localhost", "DATABASE_URL=mysql://h/d", "DATABASE_URL=postgres://", "REDIS_URL=http://h",
		"QUEEN_REDIS_PREFIX={q}", "QUEEN_REDIS_PREFIX=a b", "QUEEN_REDIS_PREFIX=q*", "QUEEN_REDIS_PREFIX=" + strings.Repeat("q", 65),
		"QUEEN_EPHEMERAL_MAX_BYTES=0", "QUEEN_EPHEMERAL_QUEUE_MAX_LENGTH=1e9", "QUEEN_EPHEMERAL_LEASE_S=30s", "QUEEN_EPHEMERAL_LEASE_S=0",
		"QUEEN_EPHEMERAL_RETRY_LIMIT=-1", "QUEEN_EPHEMERAL_GROUP_IDLE_S=-1", "QUEEN_EPHEMERAL_REQUIRE_GRANT=maybe",
		"PG_PORT=x", "PG_USE_SSL=ja", "PG_SSL_REJECT_UNAUTHORIZED=nein",
		"JWT_ENABLED=true", "JWT_ENABLED=perhaps", "QUEEN_TENANCY_HEADER=1", "QUEEN_ENCRYPTION_KEY=abc",
	} {
		name, value, _ := strings.Cut(env, "=")
		_, err := Load([]string{env}, nil)
		if value == "" { // empty means the default, so it must not fail
			if err != nil {
				t.Errorf("%s: %v", env, err)
			}
			continue
		}
		var cfgErr *Error
		if !errors.As(err, &cfgErr) || cfgErr.Name != name {
			t.Errorf("%s: error %v, want one that names %s", env, err, name)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Load([]string{"PORT=x", "LOG_LEVEL=y"}, nil)
	if err == nil || !strings.Contains(err.Error(), "PORT") || !strings.Contains(err.Error(), "LOG_LEVEL") {
		t.Errorf("error %v, want both mistakes", err)
	}
}

func TestBooleans(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"true": true, "1": true, "yes": true, "on": true, "TRUE": true, "tRue": true, "On": true,
		"false": false, "0": false, "no": false, "off": false, "False": false, "": false,
	} {
		if got := load(t, "QUEEN_LOG_JSON="+text).LogJSON; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestFirstNameWins(t *testing.T) {
	t.Parallel()
	if got := load(t, "HOST=10.0.0.1", "QUEEN_BIND_ADDR=10.0.0.2").BindAddr; got != "10.0.0.2" {
		t.Errorf("bind address %s", got)
	}
	if got := load(t, "HOST=10.0.0.1", "QUEEN_BIND_ADDR=").BindAddr; got != "10.0.0.1" {
		t.Errorf("an empty variable hid its alias: %s", got)
	}
}

func TestDatabaseFromParts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		env  []string
		want string
	}{
		{
			[]string{"PG_HOST=db", "PG_PORT=6543", "PG_USER=u", "PG_PASSWORD=p@/:#w", "PG_DB=q"},
			"postgres://u:p%40%2F%3A%23w@db:6543/q?sslmode=disable",
		},
		{[]string{"PG_DATABASE=a", "PG_DB=b"}, "postgres://postgres:postgres@localhost:5432/a?sslmode=disable"},
		{[]string{"PG_USE_SSL=true"}, "postgres://postgres:postgres@localhost:5432/postgres?sslmode=verify-full"},
		{
			[]string{"PG_USE_SSL=true", "PG_SSL_ROOT_CERT=/ca.pem"},
			"postgres://postgres:postgres@localhost:5432/postgres?sslmode=verify-full&sslrootcert=%2Fca.pem",
		},
		{
			[]string{"PG_USE_SSL=true", "PG_SSL_REJECT_UNAUTHORIZED=false", "PG_SSL_ROOT_CERT=/ca.pem"},
			"postgres://postgres:postgres@localhost:5432/postgres?sslmode=require",
		},
		{[]string{"PG_HOST=/run/pg"}, "postgres://postgres:postgres@/postgres?host=%2Frun%2Fpg&port=5432&sslmode=disable"},
		{[]string{"PG_HOST=db", "DATABASE_URL=postgres://other/q"}, "postgres://other/q"},
	} {
		if got := load(t, tc.env...).DatabaseURL; got != tc.want {
			t.Errorf("%q\n got %s\nwant %s", tc.env, got, tc.want)
		}
	}
}

func TestDatabaseGiven(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]bool{
		"": false, "PG_USER=u": false, "DATABASE_URL=": false,
		"DATABASE_URL=postgres://db/q": true, "PG_HOST=db": true,
	} {
		if got := load(t, env).DatabaseGiven; got != want {
			t.Errorf("%q: %v, want %v", env, got, want)
		}
	}
}

func TestFlagsWin(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse([]string{"--port=7000", "--log-json=true", "--max-body-bytes", "4096"}); err != nil {
		t.Fatal(err)
	}
	c, err := Load([]string{"PORT=8000", "DB_POOL_SIZE=5"}, flags)
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 7000 || !c.LogJSON || c.MaxBodyBytes != 4096 || c.PoolSize != 5 {
		t.Errorf("got\n%v", c)
	}
	if err := flags.Parse([]string{"--port=x"}); err != nil {
		t.Fatal(err)
	}
	var cfgErr *Error
	if _, err := Load(nil, flags); !errors.As(err, &cfgErr) || cfgErr.Name != "--port" {
		t.Errorf("error %v, want one that names --port", err)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, env := range [][]string{
		{"DATABASE_URL=postgres://u:" + secret + "@db/q", "REDIS_URL=redis://:" + secret + "@cache"},
		{"DATABASE_URL=postgres://db/q?user=u&password=" + secret + "&sslpassword=" + secret},
		{"PG_PASSWORD=" + secret},
	} {
		c := load(t, env...)
		if !strings.Contains(c.DatabaseURL, secret) {
			t.Fatal("the value itself must stay whole")
		}
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", c)
		for _, out := range []string{c.String(), fmt.Sprintf("%v %+v %#v", c, c, c), log.String()} {
			if strings.Contains(out, secret) {
				t.Errorf("%q printed: %s", env, out)
			}
			if !strings.Contains(out, "xxxxx") {
				t.Errorf("%q: nothing shows that a password is set: %s", env, out)
			}
		}
	}
	for _, env := range []string{
		"DATABASE_URL=postgres://u:" + secret + "#%zz@db/q",
		"DATABASE_URL=postgres://u:" + secret + "@db:port/q",
		"DATABASE_URL=u:" + secret + "@db",
		"REDIS_URL=redis://:" + secret + "%@h",
		"QUEEN_ENCRYPTION_KEY=" + secret,
	} {
		if _, err := Load([]string{env}, nil); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: error %v; want one without the secret", env, err)
		}
	}
	if got := maskSecret("12345678901234567890123456789012"); got != "<set:32 chars>" {
		t.Errorf("mask %q", got)
	}
}

func TestLegacyNamesAreReported(t *testing.T) {
	t.Parallel()
	c := load(t, "NUM_WORKERS=garbage", "SIDECAR_POOL=1", "QUEEN_HOTLIST=1", "PATH=/bin", "PORT=1")
	want := []string{"NUM_WORKERS", "QUEEN_HOTLIST", "SIDECAR_POOL"}
	if !reflect.DeepEqual(c.Ignored, want) {
		t.Errorf("ignored %q, want %q", c.Ignored, want)
	}
}

func TestEveryNameIsUsedOnce(t *testing.T) {
	t.Parallel()
	var c Config
	var pg postgresParts
	names, flags := map[string]bool{}, map[string]bool{}
	for _, s := range settings(&c, &pg) {
		if flags[s.flag()] {
			t.Errorf("flag --%s twice", s.flag())
		}
		flags[s.flag()] = true
		for _, name := range s.names {
			if names[name] {
				t.Errorf("variable %s twice", name)
			}
			names[name] = true
		}
	}
}
