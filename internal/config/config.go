// Package config reads what an operator can set: once, at start, from flags and
// the environment. Nothing else in the program looks at the environment.
//
// A value that makes no sense is a fatal error that names the variable. A
// broker that starts with a default in place of what was asked for is found out
// much later and much more expensively.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Config is the effective configuration. The field comments name the variable.
type Config struct {
	DatabaseURL string // DATABASE_URL, or built from PG_HOST and its siblings
	// DatabaseGiven is false when nothing says which database to use and
	// DatabaseURL is only the usual address.
	DatabaseGiven bool
	RedisURL      string // REDIS_URL; empty means no hints between brokers and no ephemeral queues
	RedisPrefix   string // QUEEN_REDIS_PREFIX

	Port          int           // PORT
	BindAddr      string        // QUEEN_BIND_ADDR
	ServerID      string        // QUEEN_SERVER_ID
	MaxBodyBytes  int64         // QUEEN_MAX_BODY_BYTES
	MaxInflight   int64         // QUEEN_MAX_INFLIGHT_BYTES
	ShutdownLimit time.Duration // QUEEN_SHUTDOWN_TIMEOUT_MS

	PoolSize         int           // DB_POOL_SIZE
	StatementTimeout time.Duration // QUEEN_STMT_TIMEOUT_MS

	PopTimeout       time.Duration    // DEFAULT_TIMEOUT
	SubscriptionMode SubscriptionMode // DEFAULT_SUBSCRIPTION_MODE
	PopWait          PopWait

	CacheRefresh   time.Duration // QUEEN_CACHE_REFRESH_INTERVAL_MS
	FetchSafeFloor time.Duration // QUEEN_FETCH_SAFE_FLOOR_MS

	RetentionInterval  time.Duration // RETENTION_INTERVAL
	RetentionBatchSize int           // RETENTION_BATCH_SIZE
	PartitionCleanup   bool          // QUEEN_PARTITION_CLEANUP_ENABLED
	PartitionIdleDays  int           // PARTITION_CLEANUP_DAYS

	KV KV

	Ephemeral Ephemeral

	TimerPayload int           // QUEEN_TIMERS_MAX_PAYLOAD_BYTES
	TimerHorizon time.Duration // QUEEN_TIMERS_MAX_HORIZON_S

	LogLevel slog.Level // LOG_LEVEL
	LogJSON  bool       // QUEEN_LOG_JSON
	// ProfileAddr serves the Go profiler; empty means nowhere.
	ProfileAddr string // QUEEN_PROFILE_ADDR

	// Ignored names variables that are set and that another version of the
	// broker had a use for. They are worth a line in the log.
	Ignored []string
}

// PopWait says how a waiting pop looks again by itself, for when a hint was
// lost.
type PopWait struct {
	InitialInterval  time.Duration // POP_WAIT_INITIAL_INTERVAL_MS
	BackoffThreshold int           // POP_WAIT_BACKOFF_THRESHOLD: looks before the interval grows
	Multiplier       float64       // POP_WAIT_BACKOFF_MULTIPLIER
	MaxInterval      time.Duration // POP_WAIT_MAX_INTERVAL_MS
}

// KV bounds the key/value store.
type KV struct {
	MaxValueBytes int     // QUEEN_KV_MAX_VALUE_BYTES
	MaxReadBytes  int64   // QUEEN_KV_MAX_READ_BYTES
	MaxOps        int     // QUEEN_KV_MAX_OPS_PER_CALL
	MaxKeys       int     // QUEEN_KV_MAX_KEYS_PER_CALL
	WriteRate     float64 // QUEEN_KV_WRITE_RATE
	ReadRate      float64 // QUEEN_KV_READ_RATE
}

// Ephemeral bounds the ephemeral queues, all brokers' together.
type Ephemeral struct {
	MaxBytes       int64         // QUEEN_EPHEMERAL_MAX_BYTES
	QueueMaxBytes  int64         // QUEEN_EPHEMERAL_QUEUE_MAX_BYTES: default and ceiling
	QueueMaxLength int64         // QUEEN_EPHEMERAL_QUEUE_MAX_LENGTH: default and ceiling
	Lease          time.Duration // QUEEN_EPHEMERAL_LEASE_S
	RetryLimit     int64         // QUEEN_EPHEMERAL_RETRY_LIMIT
	ImplicitIdle   time.Duration // QUEEN_EPHEMERAL_IMPLICIT_IDLE_S
	Unread         time.Duration // QUEEN_EPHEMERAL_UNREAD_S
	GroupIdle      time.Duration // QUEEN_EPHEMERAL_GROUP_IDLE_S; 0 is never
	RequireGrant   bool          // QUEEN_EPHEMERAL_REQUIRE_GRANT
}

// SubscriptionMode says where a consumer group starts that is new to a queue.
type SubscriptionMode string

// The two modes.
const (
	SubscribeNew SubscriptionMode = "new" // with what is pushed from now on
	SubscribeAll SubscriptionMode = "all" // with the oldest message kept
)

// Error says which setting is wrong and why. It never carries the value of a
// secret.
type Error struct {
	Name   string // as the user wrote it: PORT or --port
	Reason string
}

func (e *Error) Error() string { return e.Name + ": " + e.Reason }

// Environment is the process's own environment, for Load.
func Environment() []string { return os.Environ() }

// AddFlags defines one flag for each variable. A flag wins over its variable.
func AddFlags(fs *pflag.FlagSet) {
	var c Config
	var pg postgresParts
	for _, s := range settings(&c, &pg) {
		help := s.help + " [" + strings.Join(s.names, ", ") + "]"
		if s.byDefault != "" {
			help += " (default " + s.byDefault + ")"
		}
		// Every flag is a string, so that flags and variables go through
		// the same rules and give the same errors.
		fs.String(s.flag(), "", help)
		fs.Lookup(s.flag()).DefValue = "" // already part of the text
	}
}

// Load reads everything from the environment, NAME=value each, and the flags,
// which may be nil. All mistakes come back at once, each an *Error.
func Load(environ []string, flags *pflag.FlagSet) (Config, error) {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = strings.TrimSpace(value)
	}
	var c Config
	var pg postgresParts
	var errs []error
	all := settings(&c, &pg)
	for _, s := range all {
		name, text := s.find(env, flags)
		if err := s.parse(text); err != nil {
			errs = append(errs, &Error{Name: name, Reason: err.Error()})
		}
	}
	errs = append(errs, refuse(env)...)
	if len(errs) == 0 {
		errs = append(errs, c.finish(pg))
	}
	c.DatabaseGiven = given(all, env, flags)
	c.Ignored = ignored(env)
	if err := errors.Join(errs...); err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// given reports whether the database was named, by address or by host.
func given(all []setting, env map[string]string, flags *pflag.FlagSet) bool {
	return slices.ContainsFunc(all, func(s setting) bool {
		if s.names[0] != "DATABASE_URL" && s.names[0] != "PG_HOST" {
			return false
		}
		_, text := s.find(env, flags)
		return text != s.byDefault
	})
}

// finish settles what depends on more than one setting.
func (c *Config) finish(pg postgresParts) error {
	if c.DatabaseURL == "" {
		c.DatabaseURL = pg.url()
	}
	if c.ServerID == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			return &Error{Name: "QUEEN_SERVER_ID", Reason: "not set and the host has no name"}
		}
		c.ServerID = host
	}
	if c.PopWait.MaxInterval < c.PopWait.InitialInterval {
		return &Error{Name: "POP_WAIT_MAX_INTERVAL_MS", Reason: "is shorter than POP_WAIT_INITIAL_INTERVAL_MS"}
	}
	return nil
}

// Effective lists every setting with its value in force, secrets masked.
func (c Config) Effective() []slog.Attr {
	var pg postgresParts
	all := settings(&c, &pg)
	attrs := make([]slog.Attr, 0, len(all))
	for _, s := range all {
		if !s.part {
			attrs = append(attrs, slog.String(s.names[0], s.show()))
		}
	}
	return attrs
}

// LogValue keeps secrets out of the log when somebody logs the whole struct.
func (c Config) LogValue() slog.Value { return slog.GroupValue(c.Effective()...) }

// String does the same for %v.
func (c Config) String() string {
	var b strings.Builder
	for _, a := range c.Effective() {
		fmt.Fprintf(&b, "%s=%s\n", a.Key, a.Value)
	}
	return b.String()
}

// GoString does the same for %#v.
func (c Config) GoString() string { return c.String() }
