package pgtest

import (
	"bufio"
	"net"
	"net/url"
	"testing"
)

func TestMain(m *testing.M) { Main(m, CheckLeaks()) }

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			pool := NewEmpty(t).Pool(t)
			for _, stmt := range []string{
				"CREATE SCHEMA queen",
				"CREATE TABLE queen.only_here (id int)",
			} {
				if _, err := pool.Exec(t.Context(), stmt); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestDatabaseIsDroppedAtCleanup(t *testing.T) {
	t.Parallel()
	var db *DB
	t.Run("user", func(t *testing.T) {
		db = NewEmpty(t)
		if _, err := db.Pool(t).Exec(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
	})
	var n int
	err := theServer(t).admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = $1", db.Name).Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("database still there (%d, %v)", n, err)
	}
}

func TestPoolNeedsQualifiedNames(t *testing.T) {
	t.Parallel()
	if _, err := NewEmpty(t).Pool(t).Exec(t.Context(), "CREATE TABLE nowhere (id int)"); err == nil {
		t.Error("an unqualified name worked; search_path should be empty")
	}
}

func TestRedisAnswers(t *testing.T) {
	t.Parallel()
	first, second := Redis(t), Redis(t)
	if first != second {
		t.Errorf("two calls gave two servers, %s and %s", first, second)
	}
	u, err := url.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || answer != "+PONG\r\n" {
		t.Errorf("answer %q, error %v", answer, err)
	}
}

func BenchmarkNewEmpty(b *testing.B) {
	for b.Loop() {
		NewEmpty(b)
	}
}
