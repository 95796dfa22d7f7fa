package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// postgresParts are the variables that describe the database one by one.
type postgresParts struct {
	host, user, password, database, rootCert string
	port                                     int
	useSSL, verify                           bool
}

func (p postgresParts) url() string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(p.user, p.password),
		Host:   net.JoinHostPort(p.host, strconv.Itoa(p.port)),
		Path:   "/" + p.database,
	}
	q := url.Values{"sslmode": {"disable"}}
	if strings.HasPrefix(p.host, "/") { // a folder with a Unix socket
		u.Host = ""
		q.Set("host", p.host)
		q.Set("port", strconv.Itoa(p.port))
	}
	switch {
	case p.useSSL && p.verify:
		q.Set("sslmode", "verify-full")
		if p.rootCert != "" {
			q.Set("sslrootcert", p.rootCert)
		}
	case p.useSSL:
		// No root certificate here: given one, clients check it although
		// they were told not to.
		q.Set("sslmode", "require")
	}
	u.RawQuery = q.Encode()
	return u.String()
}

func databaseURL(to *string, name, help string) setting {
	return address(to, name, help, "postgres", "postgresql")
}

func redisURL(to *string, name, help string) setting {
	return address(to, name, help, "redis", "rediss")
}

// keyPrefix accepts what keys in Redis may begin with: no braces, which decide
// where a cluster keeps a key, and nothing that a glob or a shell reads its way.
func keyPrefix(to *string, byDefault, help string, names ...string) setting {
	s := text(to, byDefault, help, names...)
	s.parse = func(raw string) error {
		if len(raw) > 64 {
			return errors.New("is longer than 64 characters")
		}
		for _, r := range raw {
			if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/", r) {
				return fmt.Errorf("holds %q; letters, digits and - _ . : / are allowed", r)
			}
		}
		*to = raw
		return nil
	}
	return s
}

// address accepts a URL with one of the schemes. Its errors never repeat the
// text, nor the parser's own message, which does: it may hold a password.
func address(to *string, name, help string, schemes ...string) setting {
	s := text(to, "", help, name)
	s.parse = func(raw string) error {
		if raw == "" {
			*to = ""
			return nil
		}
		scheme, _, ok := strings.Cut(raw, "://")
		if !ok || !slices.Contains(schemes, scheme) {
			return errors.New("is not a URL that starts with " + schemes[0] + "://")
		}
		u, err := url.Parse(raw)
		if err != nil {
			return errors.New("is not a valid URL; special characters in a password are written as %XX")
		}
		if u.Host == "" && u.Query().Get("host") == "" {
			return errors.New("names no host")
		}
		*to = raw
		return nil
	}
	s.show = func() string { return MaskURL(*to) }
	return s
}

// MaskURL makes an address fit to print.
func MaskURL(raw string) string {
	if raw == "" {
		return ""
	}
	u, err := url.Parse(raw)
	if err != nil {
		return maskSecret(raw)
	}
	q := u.Query()
	for key := range q {
		if strings.Contains(strings.ToLower(key), "password") {
			q.Set(key, "xxxxx")
			u.RawQuery = q.Encode()
		}
	}
	return u.Redacted()
}
