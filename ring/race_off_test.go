//go:build !race

package ring

// propertyChecks is how many memberships each property sees: thousands in all.
const propertyChecks = "500"
