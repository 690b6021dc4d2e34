// Strict reading of what deploy/ ships: every document must be of a type that its reader knows, with fields it knows.
//
//	manifests kubernetes FILE…   objects of Kubernetes, OpenShift and the Prometheus operator ("-" is standard input);
//	                             prints kind and name of each
//	manifests compose FILE…      one project of Docker Compose, from files merged in this order; prints it as JSON
//
// Exit 1: something is wrong, and standard error says what.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/cli"
	security "github.com/openshift/api/security/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: manifests kubernetes|compose FILE…")
		os.Exit(2)
	}
	check, known := map[string]func([]string) error{"kubernetes": kubernetes, "compose": compose}[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "manifests: %q is neither kubernetes nor compose\n", os.Args[1])
		os.Exit(2)
	}
	if err := check(os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "manifests: %v\n", err)
		os.Exit(1)
	}
}

func kubernetes(names []string) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, core.AddToScheme, rbac.AddToScheme, monitoring.AddToScheme, security.Install,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	// Strict: unknown and doubled fields are errors, as with kubectl apply --validate=strict.
	options := json.SerializerOptions{Yaml: true, Strict: true}
	serializer := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, options)
	var wrong []error
	for _, name := range names {
		if err := objects(name, serializer); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(wrong...)
}

// objects decodes every document of a file and continues after an invalid one.
func objects(name string, serializer runtime.Decoder) error {
	text, err := read(name)
	if err != nil {
		return err
	}
	var wrong []error
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	found := 0
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		// A comment before the first "---" is a document too, and empty.
		if content, err := yaml.ToJSON(document); err == nil && string(content) == "null" {
			continue
		}
		found++
		object, kind, err := serializer.Decode(document, nil, nil)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		fmt.Printf("%s %s\n", kind.Kind, accessor.GetName())
	}
	if found == 0 {
		wrong = append(wrong, errors.New("no object"))
	}
	return errors.Join(wrong...)
}

func read(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

// compose loads a project as docker compose does: variables, merging, the schema of the specification, consistency.
func compose(names []string) error {
	options, err := cli.NewProjectOptions(
		names, cli.WithOsEnv, cli.WithWorkingDirectory(filepath.Dir(names[0])), cli.WithDotEnv,
		cli.WithDefaultProfiles("*"), cli.WithConsistency(true), cli.WithInterpolation(true),
	)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	resolved, err := project.MarshalJSON()
	if err != nil {
		return err
	}
	fmt.Println(string(resolved))
	return nil
}
