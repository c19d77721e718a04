//! Arachne: Core-Aware Thread Management (OSDI'18).

pub mod fig10;
pub mod fig11;
pub mod fig2;
pub mod fig2a;
pub mod fig3;
pub mod fig3b;
pub mod fig5;
pub mod fig8;
pub mod fig9;
pub mod table2;
