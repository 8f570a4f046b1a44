package admin

import "context"

type operatorKey struct{}

// asker is who a request comes from.
type asker struct {
	name   string
	inside bool // may see what is behind the port's protection
}

func withOperator(ctx context.Context, name string, inside bool) context.Context {
	return context.WithValue(ctx, operatorKey{}, asker{name, inside})
}

// askerOf is who asked; the zero value on paths that bypass the guard.
func askerOf(ctx context.Context) asker {
	a, _ := ctx.Value(operatorKey{}).(asker)
	return a
}
