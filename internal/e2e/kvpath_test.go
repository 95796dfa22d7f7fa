package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// rawGet sends a path as it is: http.Client would not.
func rawGet(t *testing.T, b *Broker, path string) (int, string) {
	t.Helper()
	u, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, u.Host); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var r KVResult
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		t.Fatalf("%s: %d %v", path, res.StatusCode, err)
	}
	return res.StatusCode, string(r.Value)
}

func TestKV_K24_KeysInPaths(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Env: fast}).One()
	long := strings.Repeat("ü", 256)
	for i, c := range []struct {
		key   string
		paths []string
	}{
		{"a/b", []string{"a/b", "a%2Fb", "a%2fb"}},
		{"a b?c#d", []string{"a%20b%3Fc%23d"}},
		{"a//b", []string{"a//b", "a%2F/b", "a%2F%2Fb"}},
		{"..", []string{"..", "%2E%2E", "%2e."}},
		{"../../x", []string{"../../x", "..%2F../x"}},
		{".", []string{"."}},
		{"x/", []string{"x/", "x%2F"}},
		{"/x", []string{"/x", "%2Fx"}},
		{"/", []string{"/", "%2F"}},
		{"a/./b", []string{"a/./b"}},
		{"50%", []string{"50%25"}},
		{"a%2Fb", []string{"a%252Fb"}},
		{"a+b", []string{"a+b", "a%2Bb"}},
		{"line\nbreak\t", []string{"line%0Abreak%09"}},
		{"größe/日本", []string{Seg("größe/日本"), "gr%C3%B6%C3%9Fe/%E6%97%A5%E6%9C%AC"}},
		{"list", []string{"list"}},
		{long, []string{Seg(long)}},
	} {
		name, err := json.Marshal(c.key)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprint(i)
		b.KV1(`{"op":"put","ns":"n","key":%s,"value":%s,"forever":true}`, name, want)
		for _, p := range c.paths {
			if status, value := rawGet(t, b, "/api/v1/kv/n/"+p); status != 200 || value != want {
				t.Errorf("%q by %s: %d %s, want %s", c.key, p, status, value, want)
			}
		}
		for _, p := range c.paths[len(c.paths)-1:] {
			if strings.Contains(p, "..") || strings.HasSuffix(p, ".") {
				continue // the client would clean it
			}
			var r KVResult
			b.MustInto(&r, 200, "PUT", "/api/v1/kv/n/"+p, `{"value":"new","ttlSeconds":60}`)
			if r.Key != c.key || r.Index != 0 || r.Op != "put" {
				t.Errorf("%q by %s: %+v", c.key, p, r)
			}
			wantKV(t, b.KV1(`{"op":"get","ns":"n","key":%s}`, name), `"new"`)
			b.MustInto(&r, 200, "DELETE", "/api/v1/kv/n/"+p, nil)
			wantKV(t, b.KV1(`{"op":"get","ns":"n","key":%s}`, name), "absent")
		}
	}
	for path, want := range map[string]string{
		"n/" + strings.Repeat("k", 513): "kv_key_too_large", "n/": "kv_bad_key", "n/a%00b": "kv_bad_key", "n/%FF": "kv_bad_key",
		"N/k": "kv_bad_namespace", "a%2Fb/k": "kv_bad_namespace", "/k": "kv_bad_namespace",
	} {
		status := 400
		if want == "kv_key_too_large" {
			status = 413
		}
		if e := b.KVRefused(status, "GET", "/api/v1/kv/"+path, ""); e.Reason != want {
			t.Errorf("%s: %+v, want %s", path, e, want)
		}
	}
}

func TestKV_K25_OnlyThePathNamesTheKey(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	put := `{"value":1,"forever":true}`
	for _, c := range [][4]string{
		{"GET", "/api/v1/kv/n/k?x=1", "", "kv_no_query_string"},
		{"PUT", "/api/v1/kv/n/k?x", put, "kv_no_query_string"},
		{"DELETE", "/api/v1/kv/n/k?expect=1", "", "kv_no_query_string"},
		{"GET", "/api/v1/resources/kv/namespaces?a=b", "", "kv_no_query_string"},
		{"POST", "/api/v1/resources/kv/list?a=b", `{"namespace":"n"}`, "kv_no_query_string"},
		{"PUT", "/api/v1/kv/n/k", `{"value":1,"forever":true,"key":"k"}`, "kv_field_in_path"},
		{"PUT", "/api/v1/kv/n/k", `{"value":1,"forever":true,"ns":"n"}`, "kv_field_in_path"},
		{"DELETE", "/api/v1/kv/n/k", `{"namespace":"n"}`, "kv_field_in_path"},
		{"PUT", "/api/v1/kv/n/k", `{"value":1,"forever":true,"tenantId":"x"}`, "kv_tenant_not_an_input"},
		{"PUT", "/api/v1/kv/n/k", `[1]`, "kv_bad_body"},
		{"PUT", "/api/v1/kv/n/k", ``, "kv_bad_body"},
		{"PUT", "/api/v1/kv/n/k", `null`, "kv_bad_body"},
		{"PUT", "/api/v1/kv/n/k", `{"value":1`, "kv_bad_body"},
		{"DELETE", "/api/v1/kv/n/k", `7`, "kv_bad_body"},
		{"PUT", "/api/v1/kv/n/k", `{"value":1}`, "kv_expiry_not_specified"},
		{"PUT", "/api/v1/kv/n/k", `{"forever":true}`, "kv_bad_request"},
		{"PUT", "/api/v1/kv/n/k", `{"value":1,"forever":true,"expect":null}`, "kv_bad_expect"},
		{"POST", "/api/v1/kv", `7`, "kv_bad_body"},
		{"POST", "/api/v1/kv", `{"ops":[]}`, "kv_bad_body"},
		{"POST", "/api/v1/kv", `[]x`, "kv_bad_body"},
		{"POST", "/api/v1/kv", `[7]`, "kv_bad_request"},
	} {
		if e := b.KVRefused(400, c[0], c[1], c[2]); e.Reason != c[3] || e.Error != "kv_bad_request" || e.Detail == "" {
			t.Errorf("%s %s %s: %+v, want %s", c[0], c[1], c[2], e, c[3])
		}
	}
	b.Must(200, "PUT", "/api/v1/kv/n/k", `{"value":1,"forever":true,"note":"unknown members are ignored"}`)
}

func TestKV_K26_ETag(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	put := b.KV1(`{"op":"put","ns":"n","key":"k","value":1,"forever":true}`)
	_, header, _ := b.Do("GET", "/api/v1/kv/n/k", nil)
	if got, want := header.Get("ETag"), fmt.Sprintf(`"%d"`, put.Version); got != want {
		t.Errorf("ETag %s, want %s", got, want)
	}
	status, header, body := b.Do("GET", "/api/v1/kv/n/none", nil)
	if status != 200 || header.Get("ETag") != "" || string(body) != `{"index":0,"op":"get","found":false,"key":"none"}` {
		t.Errorf("%d %v %s", status, header, body)
	}
}

func TestKV_K27_DeleteBodies(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, body := range []string{"", "{}", "null", " \n"} {
		b.KV1(`{"op":"put","ns":"n","key":"k","value":1,"forever":true}`)
		if answer := b.Must(200, "DELETE", "/api/v1/kv/n/k", body); string(answer) != `{"index":0,"op":"delete","applied":true,"key":"k","value":null,"version":0}` {
			t.Errorf("%q: %s", body, answer)
		}
	}
	put := b.KV1(`{"op":"put","ns":"n","key":"k","value":1,"forever":true}`)
	var r KVResult
	b.MustInto(&r, 200, "DELETE", "/api/v1/kv/n/k", fmt.Sprintf(`{"expect":%d}`, put.Version-1))
	wantKV(t, r, "version 1")
	b.MustInto(&r, 200, "DELETE", "/api/v1/kv/n/k", fmt.Sprintf(`{"expect":%d}`, put.Version))
	if !r.OK() {
		t.Errorf("%+v", r)
	}
}
