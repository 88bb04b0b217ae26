// Package bench measures the program as it is used: `holdfast serve` in a process of its
// own, and clients beside it. What one package can measure alone is among its own tests;
// ./bench.sh runs both and prints one table.
package bench
