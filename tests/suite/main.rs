//! One binary for every test that crosses a wall.

mod house;
mod layering;
