//! Shenango (NSDI'19): the figures of its evaluation (sections 7.1 to 7.3) that run on this
//! machine.

pub mod fig3;
pub mod fig4;
pub mod fig5;
pub mod fig6;
pub mod fig7;
pub mod fig8;
pub mod table2;
