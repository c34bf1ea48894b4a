// Compiles one layer, relu(x w), runs it, and looks at what comes out.
//
//   c++ -std=c++20 layer.cc $(pkg-config --cflags --libs kiln) -o layer

#include <kiln.hpp>

#include <cstdio>
#include <exception>
#include <vector>

int main() {
  try {
    kiln::api::GraphBuilder builder;
    const auto x = builder.input("f32", {2, 3});
    const auto w = builder.input("f32", {3, 2});
    const auto y = builder.op("relu", {builder.op("matmul", {x, w})});
    kiln::api::Client client;
    const kiln::api::Program program = client.compile(builder.build({y}));

    const std::vector<float> x_data = {1, 2, 3, -1, -2, -3}, w_data = {1, 0, 0, 1, 1, 1};
    std::vector<float> y_data(4);
    program.run({x_data.data(), w_data.data()}, {y_data.data()}, /*threads=*/1);
    std::printf("%g %g %g %g\n", y_data[0], y_data[1], y_data[2], y_data[3]);
    return y_data == std::vector<float>{4, 5, 0, 0} ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "layer: %s\n", problem.what());
    return 1;
  }
}
