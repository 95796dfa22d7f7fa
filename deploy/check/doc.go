// Package check holds tests of what is deployed: it renders the chart and the
// kustomization, reads the results with the types of Kubernetes and the
// Prometheus operator, and evaluates the alerts on made-up series.
//
// It is a module of its own, so that the broker's does not carry those
// dependencies. Run it with GOWORK=off; scripts/check-deploy.sh does.
package check
