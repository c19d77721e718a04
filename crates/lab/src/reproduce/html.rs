//! The report on all figures: one self-contained HTML file.
//!
//! Owns the page's markup. All text is escaped; drawings are inserted as they are: this program
//! makes them, without ids.

use std::fmt::Write as _;

use super::figure::{Context, Figure, Outcome, Table, Verdict};
use super::pages::claims_table;
use tailwater_testbed::machine::commit;

/// A figure and its outcome or error.
pub struct Entry {
    pub figure: Figure,
    pub outcome: anyhow::Result<Outcome>,
}

/// Wide tables scroll by themselves; drawings shrink with the page.
const STYLE: &str = ":root{color-scheme:light dark;--page:#fff;--ink:#1f2328;--rule:#d0d7de;--reached:#00682f;\
--missed:#a33000;--other:#59636e}@media (prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#e6edf3;--rule:#3d444d;\
--reached:#4cc38a;--missed:#ff9b6a;--other:#9198a1}a{color:#6cb6ff}}body{font:15px/1.5 system-ui,sans-serif;max-width:1300px;\
margin:2em auto;padding:0 1em;color:var(--ink);background:var(--page)}.scroll{overflow-x:auto;margin:1em 0}\
table{border-collapse:collapse}td,th{border:1px solid var(--rule);padding:.3em .6em;text-align:left;vertical-align:top}\
svg.tw-plot{display:block;margin:1em auto}\
pre{white-space:pre-wrap}.reached{color:var(--reached)}.missed{color:var(--missed)}.other{color:var(--other)}";

/// Returns the text of `report.html`.
pub fn report(entries: &[Entry], context: &Context) -> String {
    let mut html = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
<meta name=\"viewport\" content=\"width=device-width\">\n",
    );
    let _ = write!(
        html,
        "<title>Tailwater: figures reproduced</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    );
    html += "<h1>The papers’ figures, reproduced</h1>\n";
    let quick = if context.options.quick { " Quick run: shapes, not results." } else { "" };
    let machine = format!("{}, commit {}, seed {}.{quick}", context.machine, commit(), context.options.seed);
    let _ = writeln!(html, "<p>{}</p>", escape(&machine));
    html += &overview(entries);
    for entry in entries {
        html += &section(entry);
    }
    html + "</body>\n</html>\n"
}

/// Returns a table of the number of claims of each figure that hold.
fn overview(entries: &[Entry]) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table>\n<tr><th>figure</th><th>shows</th><th>reached</th><th>not reached</th><th>not comparable</th></tr>\n",
    );
    for Entry { figure, outcome } in entries {
        let count = |verdict: Verdict| match outcome {
            Ok(outcome) => outcome.claims.iter().filter(|c| c.verdict == verdict).count().to_string(),
            Err(_) => "failed".to_owned(),
        };
        let (name, title) = (escape(figure.name), escape(figure.title));
        let counts = [Verdict::Reached, Verdict::NotReached, Verdict::NotComparable].map(count);
        let [reached, missed, other] = counts;
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#{name}\">{name}</a></td><td>{title}</td><td>{reached}</td><td>{missed}</td><td>{other}</td></tr>"
        );
    }
    html + "</table></div>\n"
}

fn section(Entry { figure, outcome }: &Entry) -> String {
    let name = escape(figure.name);
    let mut html =
        format!("<h2 id=\"{name}\">{}</h2>\n<p>{}</p>\n", escape(figure.title), escape(figure.paper));
    match outcome {
        Err(error) => {
            let _ = writeln!(html, "<p class=\"missed\">Failed: {}</p>", escape(&format!("{error:#}")));
        }
        Ok(outcome) => {
            html += &outcome.svg;
            html += &table(&claims_table(&outcome.claims));
            html += "<ul>\n";
            html.extend(outcome.notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))));
            html += "</ul>\n";
            if !outcome.summary.rows().is_empty() {
                html += "<details><summary>Numbers</summary>\n";
                html += &table(&outcome.summary);
                html += "</details>\n";
            }
        }
    }
    let plan = escape(figure.plan);
    html + &format!("<details><summary>What runs</summary>\n<pre>{plan}</pre>\n</details>\n")
}

fn table(table: &Table) -> String {
    let cells = |row: &[String], tag: &str| -> String {
        let cell = |text: &String| {
            let class = match text.as_str() {
                "reached" => " class=\"reached\"",
                "NOT REACHED" => " class=\"missed\"",
                "not comparable" => " class=\"other\"",
                _ => "",
            };
            format!("<{tag}{class}>{}</{tag}>", escape(text))
        };
        format!("<tr>{}</tr>\n", row.iter().map(cell).collect::<String>())
    };
    let body: String = table.rows().iter().map(|row| cells(row, "td")).collect();
    format!("<div class=\"scroll\"><table>\n{}{body}</table></div>\n", cells(table.header(), "th"))
}

/// Text as HTML, in elements and in double-quoted attributes alike.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use tailwater_plot::draw;

    use super::super::context::Options;
    use super::super::figure::Claim;
    use super::*;
    use tailwater_testbed::machine::Machine;

    const HOSTILE: Figure = Figure::measured(
        ["hostile", "<script>alert('title')</script>", "\"A&B\"", "</pre><script>"],
        |_, _| anyhow::bail!("it is not run"),
    );

    fn document(outcome: anyhow::Result<Outcome>) -> String {
        let options = Options { quick: true, quick_rounds: 1, seed: 1, threads: 1 };
        let context = Context::new(options, Machine::describe());
        report(&[Entry { figure: HOSTILE, outcome }], &context)
    }

    #[test]
    fn no_text_becomes_markup() {
        let mut data = Table::new("<b>");
        data.row(["<i>".to_owned()]);
        let outcome = Outcome {
            svg: draw("<title>", &[]),
            summary: data,
            claims: vec![Claim::new("<u>", "a \"quoted\" & <s>".to_owned(), false)],
            notes: vec!["<script>note</script>".to_owned()],
            ..Outcome::default()
        };
        let html = document(Ok(outcome));
        for markup in ["<script", "<b>", "<i>", "<u>", "<s>", "<title>\"", "</pre><"] {
            assert!(!html.contains(markup), "{markup}\n{html}");
        }
        assert!(html.contains("<svg xmlns"), "{html}");
        assert!(html.contains("<td class=\"missed\">NOT REACHED</td>"), "{html}");
        assert_eq!(html.matches("<table").count(), html.matches("</table>").count());
    }

    #[test]
    fn a_figure_that_failed_is_in_the_report_with_its_error() {
        let html = document(Err(anyhow::anyhow!("spin ended early <exit 1>")));
        assert!(html.contains("Failed: spin ended early &lt;exit 1&gt;"), "{html}");
        assert!(html.contains("<td>failed</td>"), "{html}");
    }

    #[test]
    fn escaping_leaves_nothing_special() {
        assert_eq!(escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
        assert_eq!(escape("µs ±1"), "µs ±1");
    }
}
