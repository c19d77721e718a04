//! The list of figures, in the order in which they run: simulated ones first.

use super::figure::Figure;
use super::{arachne, ix, own, shenango, shinjuku, simulated};

/// Returns all figures.
pub fn all() -> Vec<Box<dyn Figure>> {
    let mut figures = simulated::all();
    figures.extend([
        Box::new(shenango::table2::Table2) as Box<dyn Figure>,
        Box::new(shenango::fig3::Figure3),
        Box::new(shenango::fig4::Figure4),
        Box::new(shenango::fig5::Figure5),
        Box::new(shenango::fig6::Figure6),
        Box::new(shenango::fig7::Figure7),
        Box::new(shenango::fig8::Figure8),
        Box::new(shinjuku::table1::Table1),
        Box::new(shinjuku::table2::Table2),
        Box::new(shinjuku::fig5::Figure5),
        Box::new(shinjuku::fig8::Figure8),
        Box::new(arachne::table2::Table2),
        Box::new(arachne::fig2::Figure2),
        Box::new(arachne::fig2a::Figure2a),
        Box::new(arachne::fig3::Figure3),
        Box::new(arachne::fig3b::Figure3b),
        Box::new(arachne::fig5::Figure5),
        Box::new(arachne::fig8::Figure8),
        Box::new(arachne::fig9::Figure9),
        Box::new(arachne::fig10::Figure10),
        Box::new(arachne::fig11::Figure11),
        Box::new(ix::fig4::Figure4),
        Box::new(ix::fig5::Figure5),
        Box::new(ix::fig6b::Figure6b),
        Box::new(ix::fig7::Figure7),
        Box::new(ix::table3::Table3),
        Box::new(ix::table5::Table5),
        Box::new(ix::connections::Connections),
        Box::new(ix::fig13::Figure13),
        Box::new(own::dns_slo::DnsSlo),
    ]);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_unique_name_and_a_plan_with_its_command() {
        let figures = all();
        for (index, figure) in figures.iter().enumerate() {
            let name = figure.name();
            assert!(figures[..index].iter().all(|other| other.name() != name), "{name} is there twice");
            let others = figures.iter().flat_map(|other| other.parts());
            assert!(others.filter(|part| **part == name).count() == 0, "{name} is part of another, too");
            assert!(figure.plan().contains(&format!("tailwater-lab reproduce {name}")), "{name}");
            assert!(figure.plan().contains("**Expected shape**"), "{name}");
        }
    }
}
