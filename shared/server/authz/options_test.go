package authz

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		args []string
		want []string
	}{
		"the defaults":  {},
		"unknown modes": {[]string{"--authorization-mode=RBAC,Maybe,Perhaps"}, []string{"--authorization-mode=Maybe", "--authorization-mode=Perhaps"}},
		"repeated mode": {[]string{"--authorization-mode=RBAC,RBAC"}, []string{"--authorization-mode names RBAC"}},
		"no mode":       {[]string{"--authorization-mode="}, []string{"--authorization-mode"}},
		"negative age":  {[]string{"--authorization-max-staleness=-1m"}, []string{"--authorization-max-staleness=-1m0s"}},
		"for reads":     {[]string{"--authorization-max-read-staleness=-1m"}, []string{"--authorization-max-read-staleness=-1m0s"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
			o.AddFlags(flags)
			if err := flags.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			problems := o.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("got %v, want %d problems", problems, len(test.want))
			}
			for i, problem := range problems {
				if !strings.Contains(problem.Error(), test.want[i]) {
					t.Errorf("%q does not name %s", problem, test.want[i])
				}
			}
		})
	}
}
