package check

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestManifestsHoldTogether and TestChartHoldsTogether look for the mistakes that
// an API server accepts and that show as a service without endpoints.
func TestManifestsHoldTogether(t *testing.T) {
	t.Parallel()
	o := kustomized(t, "deploy/kubernetes", "deploy/kubernetes/monitoring")
	holdTogether(t, o)

	var examples objects
	if err := examples.add(readFile(t, "deploy/kubernetes/secret.example.yaml")); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range examples.secrets {
		for key := range s.StringData {
			known[s.Name+" "+key] = true
		}
	}
	for _, c := range []corev1.Container{broker(o), o.jobs[0].Spec.Template.Spec.Containers[0]} {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				if ref := e.ValueFrom.SecretKeyRef; !known[ref.Name+" "+ref.Key] {
					t.Errorf("%s comes from %s/%s, which secret.example.yaml does not have", e.Name, ref.Name, ref.Key)
				}
			}
		}
	}
}

func broker(o *objects) corev1.Container { return o.deployments[0].Spec.Template.Spec.Containers[0] }

func holdTogether(t *testing.T, o *objects) {
	t.Helper()
	if len(o.deployments) != 1 || len(o.services) != 1 {
		t.Fatalf("%d deployments, %d services", len(o.deployments), len(o.services))
	}
	selectors(t, o)
	ports(t, o)
	probes(t, o)
	stopping(t, o)
	for _, pod := range pods(o) {
		confined(t, pod.Spec)
		variables(t, pod.Spec.Containers[0])
		command(t, pod.Spec.Containers[0])
	}
}

func pods(o *objects) []corev1.PodTemplateSpec {
	list := []corev1.PodTemplateSpec{o.deployments[0].Spec.Template}
	for _, j := range o.jobs {
		list = append(list, j.Spec.Template)
	}
	return list
}

func selectors(t *testing.T, o *objects) {
	t.Helper()
	brokers := labels.Set(o.deployments[0].Spec.Template.Labels)
	matches := func(what string, s *metav1.LabelSelector, set labels.Set, want bool) {
		t.Helper()
		sel, err := metav1.LabelSelectorAsSelector(s)
		if err != nil || sel.Empty() || sel.Matches(set) != want {
			t.Errorf("%s selects %v (%v) on %v: want %v", what, sel, err, set, want)
		}
	}
	service := &metav1.LabelSelector{MatchLabels: o.services[0].Spec.Selector}
	matches("the deployment", o.deployments[0].Spec.Selector, brokers, true)
	matches("the service", service, brokers, true)
	for _, b := range o.budgets {
		matches("the disruption budget", b.Spec.Selector, brokers, true)
	}
	for _, c := range o.deployments[0].Spec.Template.Spec.TopologySpreadConstraints {
		matches("the spread over "+c.TopologyKey, c.LabelSelector, brokers, true)
	}
	for _, m := range o.serviceMonitors {
		matches("the service monitor", &m.Spec.Selector, o.services[0].Labels, true)
		if o.services[0].Labels[m.Spec.JobLabel] != "queenmq" {
			t.Errorf("series get job=%q, the alerts look for queenmq", o.services[0].Labels[m.Spec.JobLabel])
		}
	}
	for _, p := range o.policies {
		matches("the network policy", &p.Spec.PodSelector, brokers, true)
	}
	// A migration must not get traffic, nor be counted as a broker.
	for _, j := range o.jobs {
		matches("the service", service, j.Spec.Template.Labels, false)
		matches("the deployment", o.deployments[0].Spec.Selector, j.Spec.Template.Labels, false)
		for _, p := range o.policies {
			matches("the network policy", &p.Spec.PodSelector, j.Spec.Template.Labels, true)
		}
	}
}

func ports(t *testing.T, o *objects) {
	t.Helper()
	c := broker(o)
	port := func(p intstr.IntOrString) int32 {
		for _, own := range c.Ports {
			if own.Name == p.StrVal || p.Type == intstr.Int && own.ContainerPort == p.IntVal {
				return own.ContainerPort
			}
		}
		return 0
	}
	named := map[string]bool{}
	for _, p := range o.services[0].Spec.Ports {
		named[p.Name] = true
		if port(p.TargetPort) != 6632 {
			t.Errorf("the service sends to %v", p.TargetPort)
		}
	}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if port(probe.HTTPGet.Port) != 6632 {
			t.Errorf("a probe asks port %v", probe.HTTPGet.Port)
		}
	}
	for _, m := range o.serviceMonitors {
		for _, e := range m.Spec.Endpoints {
			if !named[e.Port] {
				t.Errorf("the service monitor asks port %q", e.Port)
			}
			if !served(t, e.Path) {
				t.Errorf("the service monitor asks %s, which is not served", e.Path)
			}
		}
	}
	for _, in := range o.ingresses {
		for _, rule := range in.Spec.Rules {
			for _, path := range rule.HTTP.Paths {
				if s := path.Backend.Service; s.Name != o.services[0].Name || !named[s.Port.Name] {
					t.Errorf("the ingress sends to %s port %q", s.Name, s.Port.Name)
				}
			}
		}
	}
	for _, p := range o.policies {
		for _, in := range p.Spec.Ingress {
			if len(in.From) == 0 || len(in.Ports) != 1 || port(*in.Ports[0].Port) != 6632 {
				t.Errorf("the network policy lets %v to %v", in.From, in.Ports)
			}
		}
	}
}

var gets = regexp.MustCompile(`\{"GET", "([^"]+)"`)

// served reports a route of the broker, as its source lists them.
func served(t *testing.T, path string) bool {
	t.Helper()
	for _, m := range gets.FindAllSubmatch(readFile(t, "internal/httpapi/routes.go"), -1) {
		if string(m[1]) == path {
			return true
		}
	}
	return false
}

func probes(t *testing.T, o *objects) {
	t.Helper()
	c := broker(o)
	for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		if !served(t, probe.HTTPGet.Path) {
			t.Errorf("the %s probe asks %s, which is not served", name, probe.HTTPGet.Path)
		}
		// A broker gives the database a second before it answers.
		if probe.TimeoutSeconds < 2 {
			t.Errorf("the %s probe gives up after %d s", name, probe.TimeoutSeconds)
		}
	}
	if got := c.StartupProbe.PeriodSeconds * c.StartupProbe.FailureThreshold; got < 300 {
		t.Errorf("a broker has %d s to start", got)
	}
	if slices.Contains([]string{"/health", "/readyz"}, c.LivenessProbe.HTTPGet.Path) {
		t.Error("the liveness probe asks for the database: its outage would restart every broker")
	}
}

// stopping: the pause before SIGTERM and what is under way fit the grace period.
func stopping(t *testing.T, o *objects) {
	t.Helper()
	c := broker(o)
	limit := 15000
	for _, e := range c.Env {
		if e.Name == "QUEEN_SHUTDOWN_TIMEOUT_MS" {
			limit, _ = strconv.Atoi(e.Value)
		}
	}
	grace := *o.deployments[0].Spec.Template.Spec.TerminationGracePeriodSeconds
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil {
		t.Fatal("SIGTERM comes before the endpoints are withdrawn")
	}
	if pause := c.Lifecycle.PreStop.Sleep.Seconds; pause < 1 || grace <= 30 || pause+int64(limit/1000) > grace {
		t.Errorf("%d s before SIGTERM and %d ms after it, %d s until SIGKILL", pause, limit, grace)
	}
	// The image has no shell, so nothing may be run in it but the broker.
	if c.Lifecycle.PreStop.Exec != nil || c.LivenessProbe.Exec != nil {
		t.Error("something is run in the container")
	}
}

func confined(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	c := pod.Containers[0]
	p, s := pod.SecurityContext, c.SecurityContext
	if p == nil || p.RunAsNonRoot == nil || !*p.RunAsNonRoot || p.RunAsUser == nil || *p.RunAsUser == 0 ||
		p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: pod security %+v", c.Name, p)
	}
	if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil ||
		*s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("%s: container security %+v", c.Name, s)
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("%s: a token of the cluster is mounted", c.Name)
	}
	if _, ok := c.Resources.Limits[corev1.ResourceCPU]; ok {
		t.Errorf("%s: a CPU limit", c.Name)
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
		t.Errorf("%s: resources %v", c.Name, c.Resources)
	}
}

// variables: a misspelt one would be ignored, and its default be in force.
func variables(t *testing.T, c corev1.Container) {
	t.Helper()
	source := string(readFile(t, "internal/config/settings.go"))
	seen := map[string]bool{}
	for _, e := range c.Env {
		if seen[e.Name] {
			t.Errorf("%s: %s is given twice", c.Name, e.Name)
		}
		seen[e.Name] = true
		if !regexp.MustCompile(`"` + regexp.QuoteMeta(e.Name) + `"`).MatchString(source) {
			t.Errorf("%s: the broker does not read %s", c.Name, e.Name)
		}
	}
}

// command: the first argument is a command of the program.
func command(t *testing.T, c corev1.Container) {
	t.Helper()
	if len(c.Args) == 0 {
		t.Fatalf("%s has no arguments", c.Name)
	}
	if _, err := os.Stat(root + "/cmd/queen/" + c.Args[0] + ".go"); err != nil {
		t.Errorf("%s runs %v: %v", c.Name, c.Args, err)
	}
}
