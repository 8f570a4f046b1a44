package report

import (
	"fmt"
	"html/template"
	"io"
	"strings"
	"unicode"
)

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"chart":  func(c Chart) template.HTML { return template.HTML(c.svg()) }, // svg escapes every text itself
	"heat":   func(h *Heat) template.HTML { return template.HTML(h.svg()) },
	"number": func(s string) bool { return s != "" && (unicode.IsDigit(rune(s[0])) || s == "-" || s[0] == '+') },
	"lines": func(c Chart) []Line {
		return c.Lines[:min(len(c.Lines), maxLines)]
	},
	"style": func() template.CSS { return style() },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{.Title}}</title><style>{{style}}</style></head><body><main>
<h1>{{.Title}}</h1>{{with .Subtitle}}<p class="sub">{{.}}</p>{{end}}
{{with .Warnings}}<div class="warn"><b>Not a valid measurement</b><ul>{{range .}}<li>{{.}}</li>{{end}}</ul></div>{{end}}
{{with .Tiles}}<section class="tiles">{{range .}}<div class="tile"><div class="name">{{.Name}}</div><div class="value">{{.Value}}</div><div class="note">{{.Note}}</div></div>{{end}}</section>{{end}}
{{range .Charts}}<section><h2>{{.Title}}</h2><div class="legend">{{range $i, $l := lines .}}<span><i class="k{{$i}}"></i>{{$l.Name}}</span>{{end}}</div>{{chart .}}{{with .Note}}<p class="note">{{.}}</p>{{end}}</section>{{end}}
{{with .Heat}}<section><h2>{{.Title}}</h2><div class="scroll">{{heat .}}</div>{{with .Note}}<p class="note">{{.}}</p>{{end}}</section>{{end}}
{{range .Tables}}<section><h2>{{.Title}}</h2><div class="scroll"><table><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead><tbody>
{{range .Rows}}<tr>{{range .}}<td{{if number .}} class="n"{{end}}>{{.}}</td>{{end}}</tr>{{end}}</tbody></table></div>{{with .Note}}<p class="note">{{.}}</p>{{end}}</section>{{end}}
</main></body></html>
`))

// HTML writes the page.
func (d *Document) HTML(w io.Writer) error {
	if err := page.Execute(w, d); err != nil {
		return fmt.Errorf("cannot write report: %w", err)
	}
	return nil
}

// Colours that stay apart for colour-blind readers, for light and for dark ground.
var (
	lightLines = [maxLines]string{"#0a66c2", "#d1500c", "#00806a", "#a3238e", "#8a6d00", "#4a4a4a", "#5b3fd1", "#b3261e", "#3f7d20"}
	darkLines  = [maxLines]string{"#6cb2ff", "#ff9d5c", "#3ed6b5", "#f08be0", "#e6c84a", "#c9c9c9", "#b3a1ff", "#ff8a80", "#9fdc77"}
)

func style() template.CSS {
	var b strings.Builder
	b.WriteString(`:root{--bg:#fff;--fg:#1b1f24;--dim:#5a6472;--rule:#e2e6eb;--card:#f6f8fa;--warn:#fff3cd;--cell:#b3261e;`)
	colours := func(c [maxLines]string) {
		for i, v := range c {
			fmt.Fprintf(&b, "--s%d:%s;", i, v)
		}
	}
	colours(lightLines)
	b.WriteString(`}@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e8ebef;--dim:#9aa4b1;--rule:#2c323a;--card:#1c2127;--warn:#4a3b00;--cell:#ff8a80;`)
	colours(darkLines)
	b.WriteString(`}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.45 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.2rem}h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.05rem;margin:1.8rem 0 .4rem}
.sub,.note{color:var(--dim)}.note{font-size:.85rem}.warn{background:var(--warn);border-radius:.5rem;padding:.6rem 1rem;margin:1rem 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.7rem;margin:1rem 0}
.tile{background:var(--card);border-radius:.6rem;padding:.7rem .9rem}.tile .name{color:var(--dim);font-size:.8rem}.tile .value{font-size:1.35rem;font-variant-numeric:tabular-nums}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem}.legend i{display:inline-block;width:1rem;height:.2rem;margin-right:.35rem;vertical-align:middle}
svg{width:100%;height:auto;display:block}text{fill:var(--dim);font:12px system-ui,sans-serif}
@media (max-width:600px){text{font-size:20px}}.grid{stroke:var(--rule)}.line{fill:none;stroke-width:2}.hit{fill:transparent}.none{fill:var(--card)}.cell{fill:var(--cell)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}th,td{padding:.3rem .7rem;border-bottom:1px solid var(--rule);text-align:left;white-space:nowrap}td.n{text-align:right}th{color:var(--dim);font-weight:600}
`)
	for i := range maxLines {
		fmt.Fprintf(&b, ".s%d{stroke:var(--s%d)}.k%d{background:var(--s%d)}", i, i, i, i)
	}
	return template.CSS(b.String())
}
