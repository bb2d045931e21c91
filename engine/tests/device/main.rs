//! The device thread through its public door: exact tokens whatever the batch, the slicing and the sizes; every answer
//! ends once; nothing is kept by what is over.

mod exact;
mod faults;
mod faulty;
mod fixtures;
mod flow;
mod gpu;
mod prefix;
mod speculation;
mod structured;
