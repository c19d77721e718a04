//! The list of figures, in the order in which they run: simulated ones first.

use super::figure::Figure;
use super::{arachne, ix, own, shenango, shinjuku, simulated};

/// Returns all figures.
pub fn all() -> Vec<Figure> {
    let mut figures = simulated::all();
    figures.extend([
        shenango::table2::FIGURE,
        shenango::fig3::FIGURE,
        shenango::fig4::FIGURE,
        shenango::fig5::FIGURE,
        shenango::fig6::FIGURE,
        shenango::fig7::FIGURE,
        shenango::fig8::FIGURE,
        shinjuku::table1::FIGURE,
        shinjuku::table2::FIGURE,
        shinjuku::fig5::FIGURE,
        shinjuku::fig8::FIGURE,
        arachne::table2::FIGURE,
        arachne::fig2::FIGURE,
        arachne::fig2a::FIGURE,
        arachne::fig3::FIGURE,
        arachne::fig3b::FIGURE,
        arachne::fig5::FIGURE,
        arachne::fig8::FIGURE,
        arachne::fig9::FIGURE,
        arachne::fig10::FIGURE,
        arachne::fig11::FIGURE,
        ix::fig4::FIGURE,
        ix::fig5::FIGURE,
        ix::fig6b::FIGURE,
        ix::fig7::FIGURE,
        ix::table3::FIGURE,
        ix::table5::FIGURE,
        ix::connections::FIGURE,
        ix::fig13::FIGURE,
        own::dns_slo::FIGURE,
        own::foreign_batch::FIGURE,
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
            let others = figures.iter().flat_map(Figure::parts);
            assert!(others.filter(|part| **part == name).count() == 0, "{name} is part of another, too");
            assert!(figure.plan().contains(&format!("tailwater-lab reproduce {name}")), "{name}");
            assert!(figure.plan().contains("**Expected shape**"), "{name}");
        }
    }
}
