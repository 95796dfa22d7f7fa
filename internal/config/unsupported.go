package config

// refuse stops a broker that was told to protect something in a way this
// version does not. Carrying on would serve in the open, or write in the clear,
// what the operator believes is protected.
func refuse(env map[string]string) []error {
	var errs []error
	for _, name := range []string{"JWT_ENABLED", "QUEEN_TENANCY_HEADER"} {
		text := env[name]
		if text == "" {
			continue
		}
		on, err := parseBool(text)
		switch {
		case err != nil:
			errs = append(errs, &Error{Name: name, Reason: err.Error()})
		case on:
			errs = append(errs, &Error{Name: name, Reason: "is on, and this version cannot do that"})
		}
	}
	if env["QUEEN_ENCRYPTION_KEY"] != "" {
		errs = append(errs, &Error{Name: "QUEEN_ENCRYPTION_KEY", Reason: "is set, and this version does not encrypt"})
	}
	return errs
}
