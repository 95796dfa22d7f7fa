package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// tableSize is a table with all its native partitions.
type tableSize struct {
	Table string `json:"table"`
	Heap  int64  `json:"heapBytes"` // with TOAST and the maps
	Index int64  `json:"indexBytes"`
	Live  int64  `json:"liveRows"` // as the statistics say
	Dead  int64  `json:"deadRows"`
}

// databaseInfo is what a figure has to be read with.
type databaseInfo struct {
	Version  string            `json:"version"`
	Settings map[string]string `json:"settings"`
}

// sizeReader asks PostgreSQL how large the broker's tables are. It opens no transaction longer than a statement, or
// it would be the old snapshot itself.
type sizeReader struct {
	mu      sync.Mutex
	conn    *pgx.Conn
	dataDir string
}

const readSizesSQL = `
SELECT coalesce(root.relname, c.relname)::text AS name, coalesce(sum(pg_table_size(c.oid)), 0)::bigint,
  coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint, coalesce(sum(pg_stat_get_live_tuples(c.oid)), 0)::bigint,
  coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class root ON root.oid = pg_partition_root(c.oid)
WHERE n.nspname = 'queen' AND c.relkind IN ('r', 'm')
GROUP BY 1 ORDER BY 2 DESC, 1`

func openSizes(ctx context.Context, url string) (*sizeReader, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("sizes: connect: %w", err)
	}
	r := &sizeReader{conn: conn}
	// A size may have to wait for a slice that is being dropped; it shall not wait long.
	if _, err := conn.Exec(ctx, `SET statement_timeout = '10s'`); err != nil {
		r.close()
		return nil, fmt.Errorf("sizes: %w", err)
	}
	// Only a superuser is told; without it the disk is not watched.
	_ = conn.QueryRow(ctx, `SELECT current_setting('data_directory')`).Scan(&r.dataDir)
	return r, nil
}

func (r *sizeReader) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = r.conn.Close(ctx)
}

func (r *sizeReader) read(ctx context.Context) ([]tableSize, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows, err := r.conn.Query(ctx, readSizesSQL)
	if err != nil {
		return nil, fmt.Errorf("sizes: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tableSize])
	if err != nil {
		return nil, fmt.Errorf("sizes: %w", err)
	}
	return out, nil
}

func (r *sizeReader) info(ctx context.Context) (*databaseInfo, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info := &databaseInfo{Settings: map[string]string{}}
	rows, err := r.conn.Query(ctx, `SELECT name, current_setting(name) FROM pg_settings WHERE name IN
		('server_version', 'shared_buffers', 'synchronous_commit', 'fsync', 'full_page_writes', 'max_wal_size',
		 'wal_compression', 'autovacuum_naptime', 'max_connections')`)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		info.Settings[name] = value
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	info.Version = info.Settings["server_version"]
	delete(info.Settings, "server_version")
	return info, nil
}

// retained counts what the partitions of some queues have lost to retention and what they still hold.
func (r *sizeReader) retained(ctx context.Context, queues []string) (deleted, kept int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.conn.QueryRow(ctx, `
SELECT coalesce(sum(p.log_start), 0)::bigint, coalesce(sum(p.last_offset + 1 - p.log_start), 0)::bigint
FROM queen.queues q JOIN queen.partitions p ON p.queue_id = q.id WHERE q.name = ANY ($1)`, queues).Scan(&deleted, &kept)
	if err != nil {
		return 0, 0, fmt.Errorf("retained messages: %w", err)
	}
	return deleted, kept, nil
}

// diskFree is known when the database's files are on this machine.
func (r *sizeReader) diskFree() (free int64, known bool) {
	if r.dataDir == "" {
		return 0, false
	}
	return freeBytes(r.dataDir)
}

// brokerGauges reads two figures out of a broker's metrics.
type brokerGauges struct {
	client *client
	buf    []byte
}

func (g *brokerGauges) read(ctx context.Context) (memory, parked float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if g.buf, _, err = g.client.do(ctx, http.MethodGet, "/metrics/prometheus", nil, g.buf); err != nil {
		return 0, 0, err
	}
	for in := bufio.NewScanner(bytes.NewReader(g.buf)); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "queen_process_resident_memory_bytes":
			memory = v
		case strings.HasPrefix(name, "queen_parked_long_polls{"):
			parked += v
		}
	}
	return memory, parked, nil
}
