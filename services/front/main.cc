#include "services/front/front_process.h"

int main(int argc, char** argv) { return ete::front::run_front(argc, argv); }
