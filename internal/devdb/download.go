package devdb

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ulikunitz/xz"
)

const (
	pinnedVersion = "17.11.0"
	pinnedMajor   = 17

	artifactBase = "https://repo1.maven.org/maven2/io/zonky/test/postgres"

	downloadTimeout = 10 * time.Minute
	maxArchiveBytes = 256 << 20
)

// pinnedSums are the SHA-256 sums of the archives of pinnedVersion. A checksum
// published beside an archive protects against a broken download only; one
// that ships inside this binary protects against a changed archive as well, so
// it is the one that is checked.
var pinnedSums = map[string]string{
	"linux-amd64":    "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
	"linux-arm64v8":  "8b042e0ea418b1927d95399207950da0734d27fe01e29503ade3bdc464ad4c2b",
	"darwin-amd64":   "d464ff178e9860ba204662ac23fa547504b7fd392392ff2fb92e3fd73b5bdb64",
	"darwin-arm64v8": "a1c2786acb0c398f9b2d76806fc52f5dc8b222cbc8e9383a9b9702084daaf3a5",
}

// ErrChecksum says that a downloaded archive is not the pinned one.
var ErrChecksum = errors.New("checksum does not match")

// fetcher downloads and unpacks one archive.
type fetcher struct {
	base   string
	sums   map[string]string
	client *http.Client
	log    *slog.Logger
}

// fetchPinned returns the folder of the pinned binaries, downloading them the
// first time.
func fetchPinned(ctx context.Context, acct *account, log *slog.Logger) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = ""
	} else {
		cache = filepath.Join(cache, "queen", "postgres")
	}
	root, err := firstReachable(acct, pinnedVersion, cache,
		"/var/lib/queen/postgres", filepath.Join(os.TempDir(), "queen-postgres"))
	if err != nil {
		return "", err
	}
	f := fetcher{base: artifactBase, sums: pinnedSums, client: http.DefaultClient, log: log}
	return f.install(ctx, platform(), root)
}

func platform() string {
	arch := runtime.GOARCH
	if arch == "arm64" {
		arch = "arm64v8" // the archives' name for it
	}
	return runtime.GOOS + "-" + arch
}

// install unpacks into a folder beside root and renames it, so that root
// exists only when it is complete; a second process that finishes first wins.
func (f fetcher) install(ctx context.Context, platform, root string) (string, error) {
	bin := filepath.Join(root, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	sum, ok := f.sums[platform]
	if !ok {
		return "", fmt.Errorf("no binaries for %s", platform)
	}
	f.log.Info("downloading PostgreSQL once", "version", pinnedVersion, "platform", platform, "to", root)
	jar, err := f.download(ctx, platform, sum)
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(root), ".unpack-")
	if err != nil {
		return "", fmt.Errorf("make folder to unpack: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := unpackJar(jar, tmp); err != nil {
		return "", fmt.Errorf("unpack: %w", err)
	}
	// MkdirTemp makes it private; the server may run as another user.
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("unpack: %w", err)
	}
	if err := os.Rename(tmp, root); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("move into place: %w", err)
	}
	return bin, nil
}

func (f fetcher) download(ctx context.Context, platform, wantSum string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	name := "embedded-postgres-binaries-" + platform
	url := fmt.Sprintf("%s/%s/%s/%s-%s.jar", f.base, name, pinnedVersion, name, pinnedVersion)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", url, err)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("download %s: %s", url, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxArchiveBytes))
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", url, err)
	}
	got := sha256.Sum256(body)
	if hex.EncodeToString(got[:]) != wantSum {
		return nil, fmt.Errorf("download %s: %w: got %x, want %s", url, ErrChecksum, got, wantSum)
	}
	return body, nil
}

// unpackJar finds the compressed tar inside the jar and unpacks it.
func unpackJar(jar []byte, dir string) error {
	zr, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return fmt.Errorf("open jar: %w", err)
	}
	for _, entry := range zr.File {
		if !strings.HasSuffix(entry.Name, ".txz") {
			continue
		}
		return unpackTxz(entry, dir)
	}
	return errors.New("jar holds no .txz")
}

func unpackTxz(entry *zip.File, dir string) error {
	rc, err := entry.Open()
	if err != nil {
		return fmt.Errorf("open %s: %w", entry.Name, err)
	}
	defer rc.Close()
	raw, err := xz.NewReader(rc)
	if err != nil {
		return fmt.Errorf("decompress %s: %w", entry.Name, err)
	}
	return unpackTar(raw, dir)
}

// unpackTar writes through os.Root, which refuses names that lead out of dir.
func unpackTar(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for tr := tar.NewReader(r); ; {
		head, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(root, head, tr); err != nil {
			return fmt.Errorf("%s: %w", head.Name, err)
		}
	}
}

func unpackEntry(root *os.Root, head *tar.Header, body io.Reader) error {
	name := filepath.Clean(head.Name)
	if name == "." {
		return nil
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch head.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return root.Chmod(name, 0o755) // whatever the umask says
	case tar.TypeSymlink:
		return root.Symlink(head.Linkname, name)
	case tar.TypeLink:
		return root.Link(filepath.Clean(head.Linkname), name)
	case tar.TypeReg:
		mode := head.FileInfo().Mode().Perm() | 0o444
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		if _, err := io.CopyN(f, body, head.Size); err != nil {
			_ = f.Close()
			return err
		}
		return f.Close()
	default:
		return nil // devices and the like have no place in this archive
	}
}
