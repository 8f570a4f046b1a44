//go:build race

package ring

// propertyChecks is how many memberships each property sees.
const propertyChecks = "40"
