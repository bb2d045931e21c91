//! One binary for every test that crosses a wall.

mod bad_input;
mod batch_kill;
mod door;
mod front_door;
mod house;
mod layering;
