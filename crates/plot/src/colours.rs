//! Which colour each curve and bar of a drawing has.
//!
//! Owns the rule: a name has one colour in all panels of a drawing, and a system that most figures
//! show has the same one in every drawing.

use crate::Panel;

/// Systems with a colour of their own, in the order of the colours: that of the first name which
/// begins so.
const SYSTEMS: [&str; 2] = ["Tailwater", "Linux"];

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Colours(Vec<(String, usize)>);

impl Colours {
    /// Gives each name in the panels a colour, in the order of their appearance.
    pub fn of(panels: &[Panel]) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for panel in panels {
            let lines = panel.lines.iter().map(|line| &*line.name);
            for name in lines.chain(panel.bars.iter().map(|bar| &*bar.name)) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let system = |begins: &str| names.iter().position(|name| name.starts_with(begins));
        let systems = SYSTEMS.map(system);
        let mut free = (0_usize..).filter(|colour| systems.get(*colour).is_none_or(Option::is_none));
        let coloured = names.iter().enumerate().map(|(at, name)| {
            let own = systems.iter().position(|system| *system == Some(at));
            ((*name).to_owned(), own.or_else(|| free.next()).unwrap_or(0))
        });
        Self(coloured.collect())
    }

    /// Returns the number of the colour of a name; the first one for a name that is in no panel.
    pub fn get(&self, name: &str) -> usize {
        self.0.iter().find(|(known, _)| known == name).map_or(0, |&(_, colour)| colour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Line;

    fn colours(panels: &[&[&str]], names: &[&str]) -> Vec<usize> {
        let panel = |names: &&[&str]| Panel {
            lines: names.iter().map(|name| Line::new(*name, vec![(0.0, 1.0)])).collect(),
            ..Panel::default()
        };
        let found = Colours::of(&panels.iter().map(panel).collect::<Vec<_>>());
        names.iter().map(|name| found.get(name)).collect()
    }

    #[test]
    fn a_name_has_one_colour_in_all_panels() {
        let panels: [&[&str]; 2] = [&["Tokio", "Go"], &["Go", "may", "Tokio"]];
        assert_eq!(colours(&panels, &["Tokio", "Go", "may"]), [0, 1, 2]);
    }

    #[test]
    fn tailwater_and_linux_have_theirs_in_every_drawing() {
        assert_eq!(
            colours(&[&["Tokio", "Linux, pinned", "Tailwater"]], &["Tailwater", "Linux, pinned", "Tokio"]),
            [0, 1, 2]
        );
        assert_eq!(colours(&[&["Go", "Linux", "may"]], &["Go", "Linux", "may"]), [0, 1, 2]);
        let two: [&[&str]; 1] = [&["Tailwater, arbiter", "Tailwater, static", "Linux"]];
        assert_eq!(colours(&two, &["Tailwater, arbiter", "Tailwater, static", "Linux"]), [0, 2, 1]);
    }
}
