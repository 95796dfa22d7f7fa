package config

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// setting ties a variable to a field: its names, its rule, and how to show it.
type setting struct {
	names     []string // the first is the one to use, the others are understood
	byDefault string
	help      string
	emptySets bool // set but empty means something else than not set
	part      bool // goes into DATABASE_URL and has no field of its own
	parse     func(text string) error
	show      func() string
}

// flag is the variable's name the way flags are written.
func (s setting) flag() string {
	name := strings.TrimPrefix(s.names[0], "QUEEN_")
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// find returns the text in force and the name it came by.
func (s setting) find(env map[string]string, flags *pflag.FlagSet) (name, text string) {
	if flags != nil {
		if f := flags.Lookup(s.flag()); f != nil && f.Changed {
			return "--" + f.Name, strings.TrimSpace(f.Value.String())
		}
	}
	for _, name := range s.names {
		text, ok := env[name]
		if ok && (text != "" || s.emptySets) {
			return name, text
		}
	}
	return s.names[0], s.byDefault
}

// settings is the whole list, bound to the fields of c. The order is the order
// in which they are printed.
func settings(c *Config, pg *postgresParts) []setting {
	return slices.Concat(connections(c, pg), serving(c), keyValue(c), timers(c), ephemeral(c), background(c))
}

func connections(c *Config, pg *postgresParts) []setting {
	return []setting{
		databaseURL(&c.DatabaseURL, "DATABASE_URL", "PostgreSQL to use, postgres://user:password@host:port/database"),
		redisURL(&c.RedisURL, "REDIS_URL", "Redis for hints between brokers and for ephemeral queues; neither when empty"),
		keyPrefix(&c.RedisPrefix, "queen:", "what keys and channels in Redis begin with; one for each installation that shares it", "QUEEN_REDIS_PREFIX"),
		// The original kept 150 and more connections, because each request
		// held one. Here requests gather into shared transactions and a
		// waiting pop holds none, so a pool beyond a few per core only adds
		// contention, and three brokers fit a server of 100 connections.
		integer(&c.PoolSize, 2, 1000, "24", "connections to PostgreSQL per broker; all brokers together must fit max_connections", "DB_POOL_SIZE"),
		millis(&c.StatementTimeout, 1, "30000", "longest time for a statement, in ms", "QUEEN_STMT_TIMEOUT_MS", "DB_STATEMENT_TIMEOUT"),
		piece(text(&pg.host, "localhost", "host, when DATABASE_URL is empty", "PG_HOST")),
		piece(integer(&pg.port, 1, 65535, "5432", "port, when DATABASE_URL is empty", "PG_PORT")),
		piece(text(&pg.user, "postgres", "user, when DATABASE_URL is empty", "PG_USER")),
		piece(secret(&pg.password, "postgres", "password, when DATABASE_URL is empty", "PG_PASSWORD")),
		piece(text(&pg.database, "postgres", "database, when DATABASE_URL is empty", "PG_DATABASE", "PG_DB")),
		piece(boolean(&pg.useSSL, "false", "use TLS, when DATABASE_URL is empty", "PG_USE_SSL")),
		piece(boolean(&pg.verify, "true", "refuse a server whose certificate does not check out", "PG_SSL_REJECT_UNAUTHORIZED")),
		piece(text(&pg.rootCert, "", "file with the certificate authority of the server", "PG_SSL_ROOT_CERT")),
	}
}

func serving(c *Config) []setting {
	return []setting{
		integer(&c.Port, 0, 65535, "6632", "port to listen on; 0 takes any free one", "PORT"),
		bindAddr(&c.BindAddr, "0.0.0.0", "address to listen on, without port", "QUEEN_BIND_ADDR", "HOST"),
		text(&c.ServerID, "", "name of this broker in metrics; the host's name when empty", "QUEEN_SERVER_ID"),
		integer(&c.MaxBodyBytes, 1024, 1<<30, "67108864", "largest request body", "QUEEN_MAX_BODY_BYTES"),
		integer(&c.MaxInflight, 1<<20, 1<<40, "100663296", "bytes of request bodies in memory at once; more has to wait", "QUEEN_MAX_INFLIGHT_BYTES"),
		millis(&c.ShutdownLimit, 0, "15000", "time to finish requests at shutdown, in ms", "QUEEN_SHUTDOWN_TIMEOUT_MS"),
		atMost(millis(&c.PopTimeout, 0, "30000", "how long a waiting pop waits unless it says, in ms", "DEFAULT_TIMEOUT", "POP_DEFAULT_TIMEOUT_MS"),
			"60000 ms, the longest a pop may wait", func() bool { return c.PopTimeout.Milliseconds() <= 60000 }),
		subscriptionMode(&c.SubscriptionMode, "new", "where a new consumer group starts: new or all", "DEFAULT_SUBSCRIPTION_MODE"),
		millis(&c.PopWait.InitialInterval, 1, "100", "first interval at which a waiting pop looks by itself, in ms", "POP_WAIT_INITIAL_INTERVAL_MS"),
		integer(&c.PopWait.BackoffThreshold, 0, 1000000, "3", "looks before that interval grows", "POP_WAIT_BACKOFF_THRESHOLD"),
		factor(&c.PopWait.Multiplier, 1, 100, "2.0", "by how much it grows", "POP_WAIT_BACKOFF_MULTIPLIER"),
		millis(&c.PopWait.MaxInterval, 1, "1000", "its limit, in ms", "POP_WAIT_MAX_INTERVAL_MS"),
	}
}

func keyValue(c *Config) []setting {
	return []setting{
		integer(&c.KV.MaxValueBytes, 1, 1<<20, "65536", "largest value, as JSON without spaces", "QUEEN_KV_MAX_VALUE_BYTES"),
		integer(&c.KV.MaxReadBytes, 1024, 1<<30, "4194304", "bytes of values that one call reads; the rest is left to another page", "QUEEN_KV_MAX_READ_BYTES"),
		integer(&c.KV.MaxOps, 1, 1024, "256", "operations of one call", "QUEEN_KV_MAX_OPS_PER_CALL"),
		integer(&c.KV.MaxKeys, 1, 4096, "1024", "keys that one call names", "QUEEN_KV_MAX_KEYS_PER_CALL"),
		factor(&c.KV.WriteRate, 0, 1e9, "100", "writing calls a second of one tenant at this broker, in bursts of twice that; 0 is no limit", "QUEEN_KV_WRITE_RATE"),
		factor(&c.KV.ReadRate, 0, 1e9, "200", "reading calls a second of one tenant at this broker, in bursts of twice that; 0 is no limit", "QUEEN_KV_READ_RATE"),
	}
}

func timers(c *Config) []setting {
	return []setting{
		integer(&c.TimerPayload, 1, 16<<20, "1048576", "largest payload of a timer, decoded", "QUEEN_TIMERS_MAX_PAYLOAD_BYTES"),
		seconds(&c.TimerHorizon, 1, "7776000", "longest delay of a timer, in s", "QUEEN_TIMERS_MAX_HORIZON_S"),
	}
}

func ephemeral(c *Config) []setting {
	e := &c.Ephemeral
	const most = 1 << 40
	return []setting{
		integer(&e.MaxBytes, 1, most, "268435456", "bytes of payloads in all ephemeral queues together", "QUEEN_EPHEMERAL_MAX_BYTES"),
		integer(&e.QueueMaxBytes, 1, most, "16777216", "bytes of payloads in one ephemeral queue: default and ceiling of its option", "QUEEN_EPHEMERAL_QUEUE_MAX_BYTES"),
		integer(&e.QueueMaxLength, 1, 1e9, "10000", "messages in one ephemeral queue: default and ceiling of its option", "QUEEN_EPHEMERAL_QUEUE_MAX_LENGTH"),
		seconds(&e.Lease, 1, "30", "lease of an ephemeral queue that has no option for it, in s", "QUEEN_EPHEMERAL_LEASE_S"),
		integer(&e.RetryLimit, 0, 1e9, "5", "deliveries of a message to a group of an ephemeral queue that has no option for it", "QUEEN_EPHEMERAL_RETRY_LIMIT"),
		seconds(&e.ImplicitIdle, 1, "300", "idle time after which an empty ephemeral queue that nobody declared is removed, in s", "QUEEN_EPHEMERAL_IMPLICIT_IDLE_S"),
		seconds(&e.Unread, 1, "3600", "the same for one that holds messages, in s", "QUEEN_EPHEMERAL_UNREAD_S"),
		seconds(&e.GroupIdle, 0, "86400", "time without a pop after which a group of a declared ephemeral queue is forgotten, in s; 0 is never", "QUEEN_EPHEMERAL_GROUP_IDLE_S"),
		boolean(&e.RequireGrant, "false", "refuse ephemeral queues to tenants without a row in queen.ephemeral_grants", "QUEEN_EPHEMERAL_REQUIRE_GRANT"),
	}
}

func background(c *Config) []setting {
	return []setting{
		millis(&c.CacheRefresh, 1, "60000", "how often queue options are read again without a hint, in ms", "QUEEN_CACHE_REFRESH_INTERVAL_MS"),
		millis(&c.FetchSafeFloor, 0, "30000", "distance of the safe read time when it cannot be determined, in ms", "QUEEN_FETCH_SAFE_FLOOR_MS"),
		millis(&c.RetentionInterval, 1, "5000", "time between retention runs, in ms", "RETENTION_INTERVAL"),
		integer(&c.RetentionBatchSize, 1, 1000000, "1000", "rows a retention step takes", "RETENTION_BATCH_SIZE"),
		boolean(&c.PartitionCleanup, "true", "remove partitions that are empty and idle", "QUEEN_PARTITION_CLEANUP_ENABLED"),
		integer(&c.PartitionIdleDays, 1, 36500, "30", "days without a push after which an empty partition is idle", "PARTITION_CLEANUP_DAYS"),
		logLevel(&c.LogLevel, "info", "debug, info, warn or error", "LOG_LEVEL"),
		boolean(&c.LogJSON, "false", "log JSON instead of text", "QUEEN_LOG_JSON"),
		text(&c.ProfileAddr, "", "address of the Go profiler, such as 127.0.0.1:6060; none when empty", "QUEEN_PROFILE_ADDR"),
	}
}

// Names that steer parts of other versions which have no counterpart here. A
// trailing * stands for any ending.
var legacy = []string{
	"NUM_WORKERS", "WORKER_ID", "SIDECAR_*", "RESPONSE_*", "LIBQUEEN_*", "EVICTION_*",
	"QUEEN_VEGAS_*", "QUEEN_HOTLIST*", "QUEEN_ADMISSION_*", "QUEEN_ACK_FUSION*", "QUEEN_V2_*",
	"QUEEN_MESH_*", "QUEEN_UDP_*", "QUEEN_SYNC_*", "QUEEN_APPLY_SCHEMA", "RETENTION_PARALLELISM",
}

// ignored lists the legacy variables that are set.
func ignored(env map[string]string) []string {
	var found []string
	for name := range env {
		if slices.ContainsFunc(legacy, func(pattern string) bool {
			prefix, open := strings.CutSuffix(pattern, "*")
			return name == pattern || open && strings.HasPrefix(name, prefix)
		}) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

var _ slog.LogValuer = Config{}
