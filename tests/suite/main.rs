//! One binary for every test that crosses a wall.

mod admission;
mod bad_input;
mod batch_kill;
mod door;
mod front_door;
mod house;
mod layering;
