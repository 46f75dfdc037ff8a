//! Calibration: finds how much of a store's time a request takes, as the weights of request units. Pure:
//! sockets and clocks are the caller's (`tools/calibrate`).
//!
//! ```text
//!  shape: many commands in many sizes ─> each asked alone, in rounds ─> info: the store's own bill
//!       ─> measurement: medians ─> fit, on two thirds of the shapes ─> the last third foretold: R2
//!                                                                       └─> picture, flags to paste
//! ```

pub mod fit;
pub mod info;
pub mod measurement;
pub mod picture;
pub mod shape;

pub use fit::Features;
pub use measurement::{Calibration, Measured};
