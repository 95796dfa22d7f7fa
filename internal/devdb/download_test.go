package devdb

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
)

// archive builds a jar with a compressed tar in it, like the published ones.
func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var jar bytes.Buffer
	zw := zip.NewWriter(&jar)
	entry, err := zw.Create("postgres-test.txz")
	if err != nil {
		t.Fatal(err)
	}
	xw, err := xz.NewWriter(entry)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(xw)
	for _, head := range headers {
		body := []byte("#!/bin/sh\n")
		if head.Typeflag == tar.TypeReg {
			head.Size = int64(len(body))
		}
		if err := tw.WriteHeader(&head); err != nil {
			t.Fatal(err)
		}
		if head.Typeflag == tar.TypeReg {
			if _, err := tw.Write(body); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []interface{ Close() error }{tw, xw, zw} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return jar.Bytes()
}

var usual = []tar.Header{
	{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
	{Name: "./bin/postgres", Typeflag: tar.TypeReg, Mode: 0o700},
	{Name: "./lib/libpq.so.5.17", Typeflag: tar.TypeReg, Mode: 0o644},
	{Name: "./lib/libpq.so", Typeflag: tar.TypeSymlink, Linkname: "libpq.so.5.17"},
}

// serve answers like the registry and counts what it is asked for.
func serve(t *testing.T, jar []byte) (f fetcher, asked *[]string) {
	t.Helper()
	asked = new([]string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.Path)
		_, _ = w.Write(jar)
	}))
	t.Cleanup(srv.Close)
	sum := sha256.Sum256(jar)
	return fetcher{
		base:   srv.URL,
		sums:   map[string]string{"test-cpu": hex.EncodeToString(sum[:])},
		client: srv.Client(),
		log:    discard(),
	}, asked
}

func TestInstallDownloadsOnce(t *testing.T) {
	t.Parallel()
	f, asked := serve(t, archive(t, usual...))
	root := filepath.Join(t.TempDir(), pinnedVersion)
	for range 2 {
		bin, err := f.install(t.Context(), "test-cpu", root)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(bin, "postgres"))
		if err != nil || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("postgres: %v, error %v; want a program", info, err)
		}
	}
	want := "/embedded-postgres-binaries-test-cpu/" + pinnedVersion + "/embedded-postgres-binaries-test-cpu-" + pinnedVersion + ".jar"
	if len(*asked) != 1 || (*asked)[0] != want {
		t.Errorf("asked for %q, want %q once", *asked, want)
	}
	if target, err := os.Readlink(filepath.Join(root, "lib", "libpq.so")); err != nil || target != "libpq.so.5.17" {
		t.Errorf("link to %q, error %v", target, err)
	}
	left, err := os.ReadDir(filepath.Dir(root))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

func TestInstallRefusesAChangedArchive(t *testing.T) {
	t.Parallel()
	f, _ := serve(t, archive(t, usual...))
	f.sums["test-cpu"] = strings.Repeat("0", 64)
	root := filepath.Join(t.TempDir(), pinnedVersion)
	if _, err := f.install(t.Context(), "test-cpu", root); !errors.Is(err, ErrChecksum) {
		t.Errorf("error %v, want ErrChecksum", err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Error("a refused archive was unpacked")
	}
}

func TestInstallRefusesNamesThatLeadOutside(t *testing.T) {
	t.Parallel()
	for name, heads := range map[string][]tar.Header{
		"dots": {{Name: "../escaped", Typeflag: tar.TypeReg, Mode: 0o644}},
		"through link": {
			{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "../.."},
			{Name: "out/escaped", Typeflag: tar.TypeReg, Mode: 0o644},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := serve(t, archive(t, heads...))
			parent := t.TempDir()
			if _, err := f.install(t.Context(), "test-cpu", filepath.Join(parent, "a", "b")); err == nil {
				t.Error("accepted")
			}
			if _, err := os.Stat(filepath.Join(parent, "escaped")); err == nil {
				t.Error("wrote outside")
			}
		})
	}
}

func TestInstallExplainsFailures(t *testing.T) {
	t.Parallel()
	f, _ := serve(t, []byte("not a jar"))
	if _, err := f.install(t.Context(), "plan9-mips", t.TempDir()+"/x"); err == nil || !strings.Contains(err.Error(), "plan9-mips") {
		t.Errorf("error %v, want one that names the platform", err)
	}
	if _, err := f.install(t.Context(), "test-cpu", t.TempDir()+"/x"); err == nil {
		t.Error("accepted what is not a jar")
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(gone.Close)
	f.base = gone.URL
	if _, err := f.install(t.Context(), "test-cpu", t.TempDir()+"/x"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("error %v, want one with the status", err)
	}
}
