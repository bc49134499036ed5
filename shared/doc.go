// Package shared names the module that every Triune tier is built from; each
// package below it is named by the one job it does.
package shared
