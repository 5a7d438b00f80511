// Command precompile prints gVisor's runsc/boot/filter/filter_precompiled.go with the seccomp programs of the systrap platform
// filled in. The Go module ships that file empty, and an empty one makes every start and restore of a sandbox compile its
// filters anew (about 10 ms).
//
// usage: precompile FILE
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// The two lines of the file that change, exactly as the pinned version writes them.
const (
	disabled = "const PrecompilationDisabledAtBuildTime = true\n"
	enabled  = "const PrecompilationDisabledAtBuildTime = false\n"
	anchor   = "\tprecompiledPrograms = programs\n"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: precompile FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "precompile %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func run(path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	programs, err := config.PrecompiledPrograms()
	if err != nil {
		return fmt.Errorf("compile the seccomp programs: %w", err)
	}
	var table strings.Builder
	for _, program := range programs {
		// The other platforms are never used, and each program adds 20 KB.
		if strings.Contains(program.Name, `Platform="systrap"`) {
			table.WriteString(program.Registration("\t", "precompiledseccomp", "programs"))
		}
	}
	if table.Len() == 0 {
		return errors.New("no program names the systrap platform")
	}
	file, err := replace(string(source), disabled, enabled)
	if err != nil {
		return err
	}
	file, err = replace(file, anchor, table.String()+anchor)
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(file)
	return err
}

// replace puts a new text in the place of the only occurrence of an old one.
func replace(text, old, new string) (string, error) {
	if n := strings.Count(text, old); n != 1 {
		return "", fmt.Errorf("%q occurs %d times, not once: this version of gVisor is not the pinned one", old, n)
	}
	return strings.Replace(text, old, new, 1), nil
}
