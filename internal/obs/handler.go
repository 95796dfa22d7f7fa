package obs

import (
	"bytes"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// contentType is the plain text format every scraper understands, spelled as
// clients of this API expect it.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Handler answers a scrape with the families of this process and, as far as
// they can be had, those of extra: a database that is down must not take the
// process's own numbers with it.
func (m *Metrics) Handler(extra ...prometheus.Gatherer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		own, ownErr := m.reg.Gather()
		families := own
		for _, g := range extra {
			more, err := g.Gather()
			if err == nil {
				families = append(families, more...)
			}
		}
		text, err := encode(families)
		// A part that failed is left out of the answer; nothing at all
		// means that this process is broken.
		if len(text) == 0 {
			http.Error(w, "metrics: "+errors.Join(ownErr, err).Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(text)
	})
}

func encode(families []*dto.MetricFamily) ([]byte, error) {
	var buf bytes.Buffer
	var errs []error
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&buf, f); err != nil {
			errs = append(errs, err)
		}
	}
	return buf.Bytes(), errors.Join(errs...)
}
