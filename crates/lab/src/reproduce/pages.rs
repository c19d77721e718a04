//! A figure's files: a Markdown page and a JSON document.

use serde_json::{Value, json};

use super::figure::{Claim, Context, Figure, Outcome, Table};
use tailwater_testbed::machine::commit;

/// Returns the text of `NAME.json`.
///
/// # Errors
/// Never, unless a field cannot be written as JSON.
pub fn json(figure: &Figure, outcome: &Outcome, context: &Context) -> anyhow::Result<String> {
    let document = json!({
        "name": figure.name,
        "title": figure.title,
        "paper": figure.paper,
        "measured": figure.is_measured(),
        "machine": context.machine,
        "commit": commit(),
        "quick": context.options.quick,
        "seed": context.options.seed,
        "notes": outcome.notes,
        "claims": outcome.claims,
        "summary": {"header": outcome.summary.header(), "rows": outcome.summary.rows()},
        "rows": rows(&outcome.data),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Returns the rows as objects: numeric cells as numbers, blank cells left out.
fn rows(table: &Table) -> Vec<Value> {
    let cell = |text: &str| match text.parse::<f64>() {
        Ok(number) if number.is_finite() => json!(number),
        _ => json!(text),
    };
    let row = |row: &Vec<String>| -> Value {
        let cells = table.header().iter().zip(row).filter(|(_, text)| !text.is_empty());
        cells.map(|(name, text)| (name.clone(), cell(text))).collect::<serde_json::Map<_, _>>().into()
    };
    table.rows().iter().map(row).collect()
}

/// Returns the text of `NAME.md`.
pub fn markdown(figure: &Figure, outcome: &Outcome, context: &Context) -> String {
    let name = figure.name;
    let mut text = format!(
        "# {}: {}\n\n`tailwater-lab reproduce {name}`, commit {}, on {}. What runs: `crates/lab/experiments/{name}.md`.\n\n![{}]({name}.svg)\n\n",
        figure.paper,
        figure.title,
        commit(),
        context.machine,
        figure.title
    );
    text += &claims_table(&outcome.claims).to_markdown();
    text += "\n## Conditions\n\n";
    text.extend(outcome.notes.iter().map(|note| format!("- {note}\n")));
    if !outcome.summary.rows().is_empty() {
        text += "\n## Numbers\n\nMedian over the rounds, with the lowest and highest where they differ.\n\n";
        text += &outcome.summary.to_markdown();
    }
    text + &format!("\nEvery round is in [{name}.csv]({name}.csv).\n")
}

/// Returns a table of the claims with their verdicts.
pub fn claims_table(claims: &[Claim]) -> Table {
    let mut table = Table::new("the paper | here | verdict");
    for claim in claims {
        table.row([claim.paper.clone(), claim.ours.clone(), claim.verdict.to_string()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_numbers_and_blanks_are_absent() {
        let mut table = Table::new("system | us | note");
        table.row(["Linux".to_owned(), "1.5".to_owned(), String::new()]);
        table.row(["nan".to_owned(), "NaN".to_owned(), "x".to_owned()]);
        let expected =
            [json!({"system": "Linux", "us": 1.5}), json!({"system": "nan", "us": "NaN", "note": "x"})];
        assert_eq!(rows(&table), expected);
    }
}
