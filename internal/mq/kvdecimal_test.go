package mq

import (
	"math/big"
	"strings"
	"testing"
)

func decimal(t *testing.T, s string) Decimal {
	t.Helper()
	d, ok := ParseDecimal([]byte(s))
	if !ok {
		t.Fatalf("%q is refused", s)
	}
	return d
}

func TestDecimal_K14_ShortestForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "0.0": "0", "-0.00e5": "0", "0e999999999": "0", "0.0e-999999999999": "0", "7": "7", "-7": "-7", "1.0": "1",
		"1.50": "1.5", "100": "100", "1e3": "1000", "1E+3": "1000", "12.5e1": "125", "1.25e1": "12.5", "5e-1": "0.5", "-5e-3": "-0.005",
		"0.001": "0.001", "123456789012345678901234567890.5": "123456789012345678901234567890.5", "10e-1": "1", "-10.10": "-10.1",
		"1e4095": "1" + strings.Repeat("0", 4095), "1e-4096": "0." + strings.Repeat("0", 4095) + "1",
	} {
		if got := decimal(t, text).String(); got != want {
			t.Errorf("%s: %.60s, want %.60s", text, got, want)
		}
	}
	for _, text := range []string{"", "null", `"1"`, "true", "[1]", "{}", "1e4096", "1e-4097", "1e999999999", "-1e99999999999999999999", "-", "9" + strings.Repeat("9", 4096)} {
		if d, ok := ParseDecimal([]byte(text)); ok {
			t.Errorf("%.30q is taken for %.30s", text, d)
		}
	}
}

func TestDecimal_K14_Sums(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"0.1", "0.2", "0.3"},
		{"9223372036854775807", "1", "9223372036854775808"},
		{"1e100", "-1", strings.Repeat("9", 100)},
		{"1e100", "1e-3", "1" + strings.Repeat("0", 100) + ".001"},
		{"-1.5", "1.5", "0"},
		{"99.99", "0.01", "100"},
		{"-0.1", "0.05", "-0.05"},
	} {
		if got := decimal(t, c[0]).Add(decimal(t, c[1])).String(); got != c[2] {
			t.Errorf("%s + %s = %s, want %s", c[0], c[1], got, c[2])
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"1", "1.0", 0}, {"0.1", "0.09", 1}, {"-2", "1e-4000", -1}, {"1e3", "999.999", 1}, {"-0", "0", 0}} {
		if got := decimal(t, c.a).Cmp(decimal(t, c.b)); got != c.want {
			t.Errorf("%s to %s: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// FuzzDecimal compares with fractions, which are exact too.
func FuzzDecimal(f *testing.F) {
	for _, s := range [][2]string{{"0.1", "0.2"}, {"-1e10", "1e-10"}, {"7", "0"}, {"1e999999999", "1"}, {"00", "1."}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, x, y string) {
		a, ok := ParseDecimal([]byte(x))
		b, ok2 := ParseDecimal([]byte(y))
		if !ok || !ok2 || len(x) > 40 || len(y) > 40 {
			return
		}
		ra, ok := new(big.Rat).SetString(x)
		rb, ok2 := new(big.Rat).SetString(y)
		if !ok || !ok2 {
			return // zeros with exponents that a fraction does not take
		}
		sum := a.Add(b)
		got, ok := new(big.Rat).SetString(sum.String())
		if !ok || got.Cmp(new(big.Rat).Add(ra, rb)) != 0 {
			t.Fatalf("%s + %s = %s", x, y, sum)
		}
		if a.Cmp(b) != ra.Cmp(rb) {
			t.Fatalf("%s to %s: %d", x, y, a.Cmp(b))
		}
		if again, ok := ParseDecimal([]byte(sum.String())); ok && again.String() != sum.String() {
			t.Fatalf("%s becomes %s", sum, again)
		}
	})
}
