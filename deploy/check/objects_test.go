package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	strict "sigs.k8s.io/yaml"
)

const root = "../.."

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// objects is what one kubectl apply would send.
type objects struct {
	deployments     []appsv1.Deployment
	services        []corev1.Service
	configMaps      []corev1.ConfigMap
	secrets         []corev1.Secret
	jobs            []batchv1.Job
	budgets         []policyv1.PodDisruptionBudget
	policies        []networkingv1.NetworkPolicy
	ingresses       []networkingv1.Ingress
	serviceMonitors []monitoringv1.ServiceMonitor
	rules           []monitoringv1.PrometheusRule

	// raw is the same as plain maps, by kind and name.
	raw map[string]map[string]any
}

// add reads documents strictly: a field that the kind does not have, or that
// is given twice, is an error.
func (o *objects) add(manifests []byte) error {
	if o.raw == nil {
		o.raw = map[string]map[string]any{}
	}
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var head map[string]any
		if err := strict.UnmarshalStrict(doc, &head); err != nil {
			return fmt.Errorf("%w in\n%s", err, doc)
		}
		if len(head) == 0 {
			continue // comments only
		}
		if err := o.decode(head, doc); err != nil {
			return fmt.Errorf("%v: %w", head["kind"], err)
		}
	}
}

func (o *objects) decode(head map[string]any, doc []byte) error {
	meta, _ := head["metadata"].(map[string]any)
	key := fmt.Sprintf("%v %v", head["kind"], meta["name"])
	if o.raw[key] != nil {
		return fmt.Errorf("%s occurs twice", key)
	}
	o.raw[key] = head
	switch id := fmt.Sprintf("%v %v", head["apiVersion"], head["kind"]); id {
	case "apps/v1 Deployment":
		return grow(&o.deployments, doc)
	case "v1 Service":
		return grow(&o.services, doc)
	case "v1 ConfigMap":
		return grow(&o.configMaps, doc)
	case "v1 Secret":
		return grow(&o.secrets, doc)
	case "batch/v1 Job":
		return grow(&o.jobs, doc)
	case "policy/v1 PodDisruptionBudget":
		return grow(&o.budgets, doc)
	case "networking.k8s.io/v1 NetworkPolicy":
		return grow(&o.policies, doc)
	case "networking.k8s.io/v1 Ingress":
		return grow(&o.ingresses, doc)
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return grow(&o.serviceMonitors, doc)
	case "monitoring.coreos.com/v1 PrometheusRule":
		return grow(&o.rules, doc)
	default:
		return fmt.Errorf("%s is a kind this test does not know", id)
	}
}

func grow[T any](list *[]T, doc []byte) error {
	var one T
	if err := strict.UnmarshalStrict(doc, &one); err != nil {
		return err
	}
	*list = append(*list, one)
	return nil
}

// kustomized is what `kubectl apply -k` would send for the folders.
func kustomized(t *testing.T, folders ...string) *objects {
	t.Helper()
	var o objects
	for _, folder := range folders {
		built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, folder))
		if err != nil {
			t.Fatal(err)
		}
		text, err := built.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		if err := o.add(text); err != nil {
			t.Fatalf("%s: %v", folder, err)
		}
	}
	return &o
}

func TestDecodingIsStrict(t *testing.T) {
	t.Parallel()
	for name, doc := range map[string]string{
		"unknown field": "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {prots: []}\n",
		"wrong type":    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: three}\n",
		"given twice":   "apiVersion: v1\nkind: Service\nkind: Service\nmetadata: {name: a}\n",
		"unknown kind":  "apiVersion: v1\nkind: Servce\nmetadata: {name: a}\n",
	} {
		var o objects
		if o.add([]byte(doc)) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestManifestFiles reads every file below deploy/kubernetes, also those that no
// kustomization lists.
func TestManifestFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(root + "/deploy/kubernetes/*.yaml")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var o objects
		if err := o.add(raw); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
