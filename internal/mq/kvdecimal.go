package mq

import (
	"bytes"
	"math/big"
	"strconv"
)

// Decimal is an exact decimal number, coefficient times ten to the exponent.
// The zero value is 0.
type Decimal struct {
	coef big.Int
	exp  int
}

// maxDecimalDigits bounds how far the digits of a number may reach to either
// side of its point: 1e999999999 is nine digits to send and a gigabyte to add.
const maxDecimalDigits = 4096

// ParseDecimal reads a JSON number. It refuses everything else, and numbers too
// long to count with.
func ParseDecimal(text []byte) (Decimal, bool) {
	var d Decimal
	if len(text) == 0 || len(text) > 2*maxDecimalDigits || text[0] != '-' && (text[0] < '0' || text[0] > '9') {
		return d, false
	}
	digits := text
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		e, err := strconv.Atoi(string(bytes.TrimPrefix(text[i+1:], []byte("+"))))
		if err != nil || e > 2*maxDecimalDigits || e < -2*maxDecimalDigits {
			// Zero is zero whatever its exponent.
			return d, len(bytes.Trim(text[:i], "-0.")) == 0
		}
		digits, d.exp = text[:i], e
	}
	if i := bytes.IndexByte(digits, '.'); i >= 0 {
		d.exp -= len(digits) - i - 1
		digits = append(append(make([]byte, 0, len(digits)), digits[:i]...), digits[i+1:]...)
	}
	if _, ok := d.coef.SetString(string(digits), 10); !ok {
		return Decimal{}, false
	}
	d.normalize()
	return d, !d.tooLong()
}

var ten = big.NewInt(10)

func pow10(n int) *big.Int { return new(big.Int).Exp(ten, big.NewInt(int64(n)), nil) }

// normalize strips trailing zeros off the coefficient, so that one value has
// one form.
func (d *Decimal) normalize() {
	if d.coef.Sign() == 0 {
		d.exp = 0
		return
	}
	text := d.coef.String()
	zeros := len(text) - len(bytes.TrimRight([]byte(text), "0"))
	if zeros > 0 {
		d.coef.Quo(&d.coef, pow10(zeros))
		d.exp += zeros
	}
}

func (d *Decimal) tooLong() bool {
	n := len(d.coef.Text(10))
	return d.exp < -maxDecimalDigits || n+d.exp > maxDecimalDigits
}

// scaled is the coefficient for another exponent, which is not above d's own.
func (d *Decimal) scaled(exp int) *big.Int {
	return new(big.Int).Mul(&d.coef, pow10(d.exp-exp))
}

// Add returns the exact sum.
func (d Decimal) Add(o Decimal) Decimal {
	sum := Decimal{exp: min(d.exp, o.exp)}
	sum.coef.Add(d.scaled(sum.exp), o.scaled(sum.exp))
	sum.normalize()
	return sum
}

// Cmp compares two numbers.
func (d Decimal) Cmp(o Decimal) int {
	exp := min(d.exp, o.exp)
	return d.scaled(exp).Cmp(o.scaled(exp))
}

// Append writes the shortest form without an exponent.
func (d Decimal) Append(b []byte) []byte {
	if d.exp >= 0 {
		return d.scaled(0).Append(b, 10)
	}
	text := new(big.Int).Abs(&d.coef).String()
	if d.coef.Sign() < 0 {
		b = append(b, '-')
	}
	point := len(text) + d.exp
	if point <= 0 {
		b = append(b, '0', '.')
		b = append(b, bytes.Repeat([]byte{'0'}, -point)...)
		return append(b, text...)
	}
	b = append(b, text[:point]...)
	return append(append(b, '.'), text[point:]...)
}

func (d Decimal) String() string { return string(d.Append(nil)) }
