//! Completions of shells and manual pages, made from the definition of the command line.
//!
//! Owns both commands. `cargo xtask dist` runs them for what it packs; hidden subcommands have
//! neither page nor completion.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use tailwater_testbed::machine;

use crate::Cli;

/// Print what a shell completes after `tailwater`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tailwater completions bash > ~/.local/share/bash-completion/completions/tailwater
  tailwater completions zsh > ~/.zfunc/_tailwater
  tailwater completions fish > ~/.config/fish/completions/tailwater.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Write the manual pages
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Prints completions.
///
/// # Errors
/// If standard output is closed.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut shown(), "tailwater", &mut text);
    stdout().write_all(&text)?;
    Ok(())
}

/// Writes `tailwater.1`, and a page for each subcommand.
///
/// # Errors
/// If a file cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let folder = &args.out;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = shown();
    command.build();
    write_page(folder, "tailwater", command.clone())?;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        let name = format!("tailwater-{}", subcommand.get_name());
        write_page(folder, &name, subcommand.clone().name(name.clone()))?;
    }
    Ok(())
}

fn write_page(folder: &Path, name: &str, command: clap::Command) -> anyhow::Result<()> {
    let path = folder.join(format!("{name}.1"));
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_subcommands = command.get_subcommands().any(|subcommand| !subcommand.is_hide_set());
    let man = clap_mangen::Man::new(command).title(name.to_uppercase());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(as_it_is("EXAMPLES", examples.trim_start_matches("Examples:\n")).into_bytes());
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns a section whose lines are not filled (man(7)).
fn as_it_is(title: &str, text: &str) -> String {
    let line = |line: &str| match line.replace('\\', "\\e").replace('-', "\\-") {
        // A line that begins so would be a request.
        line if line.starts_with(['.', '\'']) => format!("\\&{line}\n"),
        line => format!("{line}\n"),
    };
    format!(".SH {title}\n.nf\n{}.fi\n", text.lines().map(line).collect::<String>())
}

/// Returns the command line without what it hides: completions would offer it.
fn shown() -> clap::Command {
    let all = Cli::command();
    let shown: Vec<_> = all.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let mut command = clap::Command::new("tailwater").version(machine::version()).subcommands(shown);
    if let Some(about) = all.get_about() {
        command = command.about(about.clone());
    }
    match all.get_after_help() {
        Some(help) => command.after_help(help.clone()),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_example_stay_lines_and_are_no_requests() {
        let section = as_it_is("EXAMPLES", "  tailwater run -- a\n.b \\");
        assert_eq!(section, ".SH EXAMPLES\n.nf\n  tailwater run \\-\\- a\n\\&.b \\e\n.fi\n");
    }

    #[test]
    fn every_command_that_is_shown_has_a_page_with_its_examples() {
        let folder = tempfile::tempdir().unwrap();
        man(&ManArgs { out: folder.path().to_owned() }).unwrap();
        let mut found = 0;
        for entry in fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let page = fs::read_to_string(&path).unwrap();
            let has_examples = page.contains(".SH EXAMPLES\n.nf\n") && page.contains("\n  tailwater ");
            assert!(has_examples, "{}", path.display());
            found += 1;
        }
        let shown = Cli::command().get_subcommands().filter(|command| !command.is_hide_set()).count();
        assert_eq!(found, shown + 1, "a page for each, and one for all");
        assert!(!folder.path().join("tailwater-app.1").exists());
    }

    #[test]
    fn completions_offer_no_hidden_command() {
        let mut text = Vec::new();
        clap_complete::generate(Shell::Bash, &mut shown(), "tailwater", &mut text);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("iokernel") && text.contains("--managed-cores"));
        assert!(!text.contains("batch-child"));
    }
}
