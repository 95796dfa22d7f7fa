// Package devdb starts private database servers as child processes: a
// PostgreSQL for `queen dev` and for tests, and a Redis beside it. One launcher
// serves both, so a developer's laptop, a test run and CI exercise the same
// start, stop and recovery code.
//
// A server listens on the loopback interface only and trusts whoever connects
// to it. That is right for a throw-away database on one's own machine and wrong
// for anything else: do not point a production broker at it.
package devdb
