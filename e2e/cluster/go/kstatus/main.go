// Command kstatus says what Flux's health check makes of objects: it reads a JSON array of them and writes one of statuses.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type result struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var objects []map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		return err
	}
	results := make([]result, 0, len(objects))
	for _, object := range objects {
		// Only as JSON do numbers have the types that the check expects.
		content, err := json.Marshal(object)
		if err != nil {
			return err
		}
		var item unstructured.Unstructured
		if err := item.UnmarshalJSON(content); err != nil {
			return err
		}
		computed, err := status.Compute(&item)
		if err != nil {
			return err
		}
		results = append(results, result{computed.Status.String(), computed.Message})
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}
