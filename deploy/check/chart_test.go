package check

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

const chartDir = root + "/deploy/helm/queenmq"

// render is `helm template queenmq`: values are checked against the schema, then
// the templates run.
func render(t *testing.T, values string) (o *objects, notes string, err error) {
	t.Helper()
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: "queenmq", Namespace: "mq", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, "", err
	}
	e := engine.Engine{Strict: true} // a value that is missing is an error, not an empty string
	files, err := e.Render(chart, all)
	if err != nil {
		return nil, "", err
	}
	o = &objects{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case strings.HasSuffix(name, "NOTES.txt"):
			notes = files[name]
		case strings.HasSuffix(name, ".tpl"):
		default:
			if err := o.add([]byte(files[name])); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, files[name])
			}
		}
	}
	return o, notes, nil
}

func mustRender(t *testing.T, values string) (*objects, string) {
	t.Helper()
	o, notes, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return o, notes
}

// everything turns on what can be turned on.
const everything = `
replicas: 5
image: {repository: registry.example.net/queenmq, tag: "1.2.3", pullSecrets: [{name: registry}]}
database: {secret: {name: pg, key: dsn}, poolSize: 30, reserved: 20, maxConnections: 300}
redis: {secret: {name: cache, key: dsn, optional: false}}
logLevel: debug
extraEnv: [{name: RETENTION_INTERVAL, value: "10000"}]
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
service: {type: LoadBalancer, port: 80, annotations: {a: b}}
ingress:
  enabled: true
  className: nginx
  annotations: {nginx.ingress.kubernetes.io/proxy-read-timeout: "75"}
  hosts: [{host: mq.example.net}, {host: mq.example.org, path: /}]
  tls: [{secretName: cert, hosts: [mq.example.net]}]
networkPolicy:
  from: [{namespaceSelector: {}}]
  extraEgress: [{ports: [{port: 443, protocol: TCP}]}]
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
dashboard: {enabled: true}
podLabels: {team: mq}
podAnnotations: {a: b}
priorityClassName: high
nodeSelector: {disk: fast}
tolerations: [{key: mq, operator: Exists}]
affinity: {nodeAffinity: {}}
`

func TestChartHoldsTogether(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]string{"defaults": "", "everything": everything} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, notes := mustRender(t, values)
			holdTogether(t, o)
			if !strings.Contains(notes, "http://queenmq.mq.svc:") {
				t.Errorf("notes: %s", notes)
			}
		})
	}
}

func TestChartUsesItsValues(t *testing.T) {
	t.Parallel()
	o, notes := mustRender(t, everything)
	c := broker(o)
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			env[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
	}
	for name, want := range map[string]string{
		"DATABASE_URL": "pg/dsn", "REDIS_URL": "cache/dsn", "DB_POOL_SIZE": "30", "LOG_LEVEL": "debug", "RETENTION_INTERVAL": "10000",
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	if *o.deployments[0].Spec.Replicas != 5 || c.Image != "registry.example.net/queenmq:1.2.3" || o.jobs[0].Spec.Template.Spec.Containers[0].Image != c.Image {
		t.Errorf("%d times %s, migration with %s", *o.deployments[0].Spec.Replicas, c.Image, o.jobs[0].Spec.Template.Spec.Containers[0].Image)
	}
	if len(o.ingresses) != 1 || len(o.serviceMonitors) != 1 || len(o.rules) != 1 || len(o.configMaps) != 1 || len(o.ingresses[0].Spec.Rules) != 2 {
		t.Errorf("%v", slices.Sorted(maps.Keys(o.raw)))
	}
	// Five brokers, one more at first and one that is still stopping: 7 x 32 + 20.
	if !strings.Contains(notes, "up to 244 connections") {
		t.Errorf("notes: %s", notes)
	}
	if rules := alerts(t); len(o.rules[0].Spec.Groups) != len(rules.Groups) {
		t.Errorf("%d groups of rules, want %d", len(o.rules[0].Spec.Groups), len(rules.Groups))
	}
	var dashboard map[string]any
	if err := json.Unmarshal([]byte(o.configMaps[0].Data["queenmq.json"]), &dashboard); err != nil || dashboard["title"] == nil {
		t.Errorf("the dashboard does not come through: %v", err)
	}
}

func TestChartTurnsThingsOff(t *testing.T) {
	t.Parallel()
	o, notes := mustRender(t, `
migrate: {enabled: false}
networkPolicy: {enabled: false}
podDisruptionBudget: {enabled: false}
redis: {secret: {name: "", key: url}}
`)
	if got := slices.Sorted(maps.Keys(o.raw)); !slices.Equal(got, []string{"Deployment queenmq", "Service queenmq"}) {
		t.Errorf("%v", got)
	}
	for _, e := range broker(o).Env {
		if e.Name == "REDIS_URL" {
			t.Error("REDIS_URL without a Redis")
		}
	}
	if !strings.Contains(notes, "queen migrate up") {
		t.Errorf("notes: %s", notes)
	}
}

func TestMigrationRunsBeforeTheBrokers(t *testing.T) {
	t.Parallel()
	o, _ := mustRender(t, "")
	if got := o.jobs[0].Annotations["helm.sh/hook"]; got != "pre-install,pre-upgrade" {
		t.Errorf("hook %q", got)
	}
	if !strings.Contains(o.jobs[0].Annotations["helm.sh/hook-delete-policy"], "before-hook-creation") {
		t.Error("the second upgrade would find the job of the first")
	}
}

// TestChartRefuses: what cannot work is not rendered.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		// 3 + 1 brokers of 22, and 12 for others, are 100.
		"database: {maxConnections: 99}":                  "100 connections, and database.maxConnections is 99",
		"{replicas: 4, database: {maxConnections: 100}}":  "122 connections",
		"{database: {maxConnections: 100, poolSize: 24}}": "116 connections",
		"{database: {maxConnections: 100, reserved: 20}}": "108 connections",
		"shutdown: {gracePeriodSeconds: 45}":              "would be killed while they stop",
		"replicas: 0":                                     "replicas",
		"replica: 3":                                      "replica",
		"database: {secret: {name: \"\"}}":                "name",
		"rollingUpdate: {maxUnavailable: 0}":              "rollingUpdate",
		"resources: {limits: {cpu: 1}}":                   "limits",
		"ingress: {enabled: true, hosts: [mq.test]}":      "hosts",
		"logLevel: loud":                                  "logLevel",
	} {
		_, _, err := render(t, values)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", values, err, want)
		}
	}
	for _, values := range []string{"database: {maxConnections: 100}", "{replicas: 20, database: {maxConnections: 500}}"} {
		if _, _, err := render(t, values); err != nil {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// TestChartEqualsManifests: two ways to the same objects.
func TestChartEqualsManifests(t *testing.T) {
	t.Parallel()
	plain := kustomized(t, "deploy/kubernetes", "deploy/kubernetes/monitoring").raw
	o, _ := mustRender(t, "serviceMonitor: {enabled: true}")
	for _, object := range o.raw {
		meta := object["metadata"].(map[string]any)
		delete(meta, "annotations") // hooks; the plain manifests have none
		own := meta["labels"].(map[string]any)
		for _, label := range []string{"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			if own[label] == nil {
				t.Errorf("%v has no label %s", object["kind"], label)
			}
			delete(own, label)
		}
	}
	if got, want := slices.Sorted(maps.Keys(o.raw)), slices.Sorted(maps.Keys(plain)); !slices.Equal(got, want) {
		t.Fatalf("the chart makes %v\nthe manifests  %v", got, want)
	}
	for key := range plain {
		got, want := text(t, o.raw[key]), text(t, plain[key])
		if got != want {
			t.Errorf("%s differs. The chart has\n%s\nthe manifests\n%s", key, got, want)
		}
	}
}

func text(t *testing.T, object any) string {
	t.Helper()
	raw, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestEveryValueIsKnown: values.yaml and its schema list the same, so that a
// misspelt value is refused and none is undocumented.
func TestEveryValueIsKnown(t *testing.T) {
	t.Parallel()
	chart, err := loader.LoadDir(filepath.Clean(chartDir))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties           map[string]any `json:"properties"`
		AdditionalProperties bool           `json:"additionalProperties"`
	}
	if err := json.Unmarshal(chart.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	delete(schema.Properties, "global") // Helm's own
	if got, want := slices.Sorted(maps.Keys(schema.Properties)), slices.Sorted(maps.Keys(chart.Values)); !slices.Equal(got, want) || schema.AdditionalProperties {
		t.Errorf("the schema has %v\nvalues.yaml    %v", got, want)
	}
}
